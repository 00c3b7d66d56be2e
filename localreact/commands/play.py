"""`localreact eval play`: a text game, its valid actions as the grammar of each turn."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from localreact.endpoints.resolve import DEFAULT_MODEL, open_endpoint
from localreact.errors import UsageError
from localreact.eval import play as playing
from localreact.eval.arms import arm as arm_of
from localreact.eval.journal import write_whole
from localreact.eval.outside.textworld import FOLDS, TextWorldExpress
from localreact.terminal import printable

ENVIRONMENTS = {"textworld-express": TextWorldExpress}


def play(
    environment: Annotated[str, typer.Argument(help=f"Where to play: {', '.join(ENVIRONMENTS)}.")],
    game: Annotated[str, typer.Option(help="The game.")] = "coin",
    params: Annotated[str, typer.Option(help="The game's parameters, as in numLocations=3.")] = "",
    fold: Annotated[str, typer.Option(help=f"Whose seeds: {', '.join(FOLDS)}.")] = "test",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes, each with a seed of its own.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Actions in an episode, at most.")] = 30,
    arm: Annotated[str, typer.Option(help="PROTOCOL/ENGINE and options.")] = "json/llguidance",
    model: Annotated[str, typer.Option("-m", "--model", help="A model's name, or a file.")] = DEFAULT_MODEL,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the result and the traces.")] = Path(
        "eval-play"
    ),
) -> None:
    """Play a text game; beside the score stands that of random valid actions on the same seeds."""
    if environment not in ENVIRONMENTS:
        raise UsageError(f"there is no environment {environment!r}", f"There are: {', '.join(ENVIRONMENTS)}.")
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out} holds other things", "Give an empty folder with --out.")
    chosen, seeds = arm_of(arm), range(episodes)
    with closing(ENVIRONMENTS[environment](game, params, fold)) as world:
        floor = playing.play(world, playing.random_player(), seeds, steps)
        with closing(open_endpoint(model, engine=chosen.engine)) as endpoint:
            player = playing.model_player(chosen.endpoint(endpoint), out / "traces", **chosen.settings)
            summary = playing.summarise(playing.play(world, player, seeds, steps), floor)
            who = {"model": endpoint.name, "fingerprint": endpoint.fingerprint, "arm": chosen.name}
    where = {"environment": environment, "game": game, "params": params, "fold": fold, "max_steps": steps}
    document = {**who, **where, **summary}
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "play.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(
        printable(
            f"{chosen.name}: score {summary['score']:.3f}, random {summary['random']:.3f}, difference "
            f"{summary['difference']:+.3f} ({summary['difference_low']:+.3f} to "
            f"{summary['difference_high']:+.3f}); {summary['invalid']} of {summary['steps']} turns invalid"
        )
    )

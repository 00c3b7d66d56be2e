"""Playing in an environment: each turn's valid actions are the grammar of that turn.

Beside a model's score stands that of playing at random among the valid actions, on the same seeds: a model
that only the grammar keeps from nonsense does no better.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from localreact.agent import Agent
from localreact.endpoints.base import Endpoint
from localreact.errors import EndpointError
from localreact.eval.statistics import bootstrap

REMEMBERED = 4
"""Actions, with what came of them, that the model is shown."""


@dataclass(frozen=True)
class Seen:
    """What an environment shows after an action: `score` is from 0 to 1."""

    text: str
    score: float = 0.0
    done: bool = False


class Environment(Protocol):
    def reset(self, seed: int) -> Seen:
        """Begin an episode; the same seed begins the same one."""

    def valid_actions(self) -> list[str]: ...

    def step(self, action: str) -> Seen: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Situation:
    """What a player knows: where it began, the last actions with what they showed, what can be done."""

    episode: int
    step: int
    beginning: str
    past: tuple[tuple[str, str], ...]
    actions: tuple[str, ...]

    @property
    def question(self) -> str:
        lines = [self.beginning, *(f"> {action}\n{text}" for action, text in self.past[-REMEMBERED:])]
        return "\n".join((*lines, "What is the next action?"))


Player = Callable[[Situation], str | None]
"""Chooses an action; None where it said nothing that is one."""


@dataclass(frozen=True)
class Episode:
    """`invalid` are turns that chose no valid action: they are lost."""

    seed: int
    score: float
    done: bool
    steps: int
    invalid: int


def play(environment: Environment, player: Player, seeds: Sequence[int], max_steps: int) -> list[Episode]:
    """An episode per seed.

    Raises:
        EndpointError: the model's endpoint failed; that says nothing about the model.
    """
    return [_episode(environment, player, seed, max_steps) for seed in seeds]


def _episode(environment: Environment, player: Player, seed: int, max_steps: int) -> Episode:
    seen = environment.reset(seed)
    beginning, invalid, steps = seen.text, 0, 0
    past: list[tuple[str, str]] = []
    while steps < max_steps and not seen.done:
        steps += 1
        actions = tuple(environment.valid_actions())
        chosen = player(Situation(seed, steps, beginning, tuple(past), actions))
        if chosen in actions:
            seen = environment.step(chosen)
            past.append((chosen, seen.text))
        else:
            invalid += 1
    return Episode(seed, seen.score, seen.done, steps, invalid)


def random_player(seed: int = 0) -> Player:
    """Any valid action, each as likely; reproducible."""
    chance = random.Random(seed)
    return lambda situation: chance.choice(situation.actions)


def model_player(endpoint: Endpoint, traces: Path, **settings: Any) -> Player:
    """A model whose turn can only answer with a valid action (where its endpoint enforces grammars)."""

    def choose(situation: Situation) -> str | None:
        trace = traces / f"{situation.episode}-{situation.step:03}.jsonl"
        agent = Agent(endpoint, trace=trace, **{"max_tokens": 300, "max_steps": 1, **settings})
        run = agent.run(situation.question, answer={"enum": list(situation.actions)})
        if run.status in ("endpoint_error", "cancelled"):
            raise EndpointError(f"episode {situation.episode}, step {situation.step}: {run.reason}")
        return run.value if isinstance(run.value, str) else None

    return choose


def summarise(model: Sequence[Episode], floor: Sequence[Episode]) -> dict[str, Any]:
    """Mean scores, the floor's on the same seeds, and the 95% interval of the difference."""
    differences = [ours.score - theirs.score for ours, theirs in zip(model, floor, strict=True)]
    low, high = bootstrap(differences)
    return {
        "episodes": len(model),
        "score": _mean([each.score for each in model]),
        "random": _mean([each.score for each in floor]),
        "difference": _mean(differences),
        "difference_low": round(low, 4),
        "difference_high": round(high, 4),
        "steps": sum(each.steps for each in model),
        "invalid": sum(each.invalid for each in model),
        "model_episodes": [asdict(each) for each in model],
        "random_episodes": [asdict(each) for each in floor],
    }


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4)

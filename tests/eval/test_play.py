from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from localreact import ScriptedEndpoint
from localreact.cli import app
from localreact.commands import play as commands
from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import EndpointError, MissingPartError, UsageError
from localreact.eval.outside.textworld import TextWorldExpress
from localreact.eval.play import Episode, Seen, Situation, model_player, play, random_player, summarise
from localreact.trace.jsonl import read_trace


class Corridor:
    """Four rooms in a row; the coin lies in the last."""

    def reset(self, seed: int) -> Seen:
        self.room = seed % 3
        return Seen(f"You are in room {self.room}. Find the coin.")

    def valid_actions(self) -> list[str]:
        return ["west", "east"] if self.room else ["east"]

    def step(self, action: str) -> Seen:
        assert action in self.valid_actions()
        self.room += 1 if action == "east" else -1
        return Seen(f"You are in room {self.room}.", self.room / 3, self.room == 3)

    def close(self) -> None: ...


def turn(action: str) -> str:
    return json.dumps({"thought": "I go on.", "type": "finish", "answer": action})


def test_a_model_plays_by_its_answers(tmp_path: Path) -> None:
    endpoint = ScriptedEndpoint([turn("east"), turn("jump"), turn("east"), turn("east")])
    (episode,) = play(Corridor(), model_player(endpoint, tmp_path, protocol="json"), [0], 10)
    assert episode == Episode(seed=0, score=1.0, done=True, steps=4, invalid=1)
    assert "> east\nYou are in room 1." in endpoint.prompts[-1].text
    assert len(list(tmp_path.glob("0-*.jsonl"))) == 4
    assert read_trace(tmp_path / "0-001.jsonl")[-1]["event"] == "RunEnded"


def test_the_valid_actions_are_the_grammar(tiny: LlamaEndpoint, tmp_path: Path) -> None:
    """A model of random weights never leaves them."""
    episodes = play(Corridor(), model_player(tiny, tmp_path, protocol="json"), range(3), 4)
    assert [each.invalid for each in episodes] == [0, 0, 0]
    assert all(each.done or each.steps == 4 for each in episodes)


def test_random_play_is_reproducible_and_ends_at_the_limit() -> None:
    first = play(Corridor(), random_player(3), range(20), 12)
    assert first == play(Corridor(), random_player(3), range(20), 12)
    assert any(each.done for each in first)
    assert all(each.steps <= 12 and each.invalid == 0 for each in first)


def test_an_endpoint_that_fails_is_no_bad_move(tmp_path: Path) -> None:
    endpoint = ScriptedEndpoint([EndpointError("the server is gone")])
    with pytest.raises(EndpointError, match="episode 0, step 1: the server is gone"):
        play(Corridor(), model_player(endpoint, tmp_path, protocol="json"), [0], 4)


def test_a_score_stands_beside_the_floor() -> None:
    ours = [Episode(0, 1.0, True, 3, 0), Episode(1, 1.0, True, 2, 1)]
    floor = [Episode(0, 0.5, False, 4, 0), Episode(1, 0.0, False, 4, 0)]
    summary = summarise(ours, floor)
    assert (summary["score"], summary["random"], summary["difference"]) == (1.0, 0.25, 0.75)
    assert (summary["difference_low"], summary["difference_high"]) == (0.5, 1.0)
    assert (summary["steps"], summary["invalid"]) == (5, 1)


def test_what_a_player_is_shown() -> None:
    past = tuple((f"go {number}", f"room {number}") for number in range(9))
    question = Situation(0, 10, "Find the coin.", past, ("east",)).question
    assert question.startswith("Find the coin.\n> go 5\nroom 5")
    assert question.endswith("> go 8\nroom 8\nWhat is the next action?")


GAME = """
from localreact.errors import UsageError
from localreact.eval.outside.textworld import TextWorldExpress
from localreact.eval.play import play, random_player

world = TextWorldExpress("coin", "numLocations=3,includeDoors=0,numDistractorItems=0")
episodes = play(world, random_player(), range(3), 60)
assert world.reset(0) == world.reset(0)
assert "look around" in world.valid_actions()
world.close()
assert all(each.invalid == 0 for each in episodes)
assert any(each.score == 1.0 for each in episodes)
try:
    TextWorldExpress("chess")
except UsageError as error:
    assert "there is no game 'chess'" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.skipif(shutil.which("java") is None, reason="TextWorld Express runs on Java")
def test_textworld_express() -> None:
    """In a process of its own: the package leaves files open."""
    pytest.importorskip("textworld_express")
    subprocess.run([sys.executable, "-c", GAME], cwd=Path(__file__).parents[2], check=True, timeout=120)


def test_without_textworld_express_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textworld_express", None)
    with pytest.raises(MissingPartError, match="pip install textworld-express"):
        TextWorldExpress()


def test_the_command_writes_what_came_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = ScriptedEndpoint([turn("east")] * 3 + [turn("jump")] + [turn("east")] * 2)
    monkeypatch.setattr(commands, "open_endpoint", lambda model, engine: endpoint)
    monkeypatch.setitem(commands.ENVIRONMENTS, "corridor", lambda game, params, fold: Corridor())
    out = str(tmp_path / "out")
    command = ["eval", "play", "corridor", "--arm", "json/free", "--episodes", "2", "--steps", "5", "-o", out]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "json/free: score 1.000" in done.output
    assert "1 of 6 turns invalid" in done.output
    document = json.loads((tmp_path / "out" / "play.json").read_text())
    assert [each["score"] for each in document["model_episodes"]] == [1.0, 1.0]
    assert document["environment"] == "corridor"
    with pytest.raises(UsageError, match="no environment 'chess'"):
        CliRunner().invoke(app, ["eval", "play", "chess"], catch_exceptions=False)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "play.json").write_text("{}")
    command = ["eval", "play", "corridor", "-o", str(tmp_path / "used")]
    with pytest.raises(UsageError, match="holds other things"):
        CliRunner().invoke(app, command, catch_exceptions=False)

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from localreact import ScriptedEndpoint
from localreact.cli import app
from localreact.commands import eval as evaluating
from localreact.errors import EndpointError, UsageError
from localreact.eval import runner
from localreact.eval.journal import Done, Journal
from localreact.eval.runner import Plan
from tests.eval.lab import ANSWER, CALL, NOTHING, write_suite
from tests.test_cli import localreact


def scripted(monkeypatch: pytest.MonkeyPatch, *replies: str | BaseException) -> None:
    """Every model is this script."""
    endpoint = ScriptedEndpoint(replies)
    monkeypatch.setattr(runner, "open_endpoint", lambda *options, **more: endpoint)


@pytest.mark.slow
def test_a_suite_on_the_small_model(tmp_path: Path) -> None:
    """The whole way, over a real model: two rounds, the same structure in both, and a report."""
    suite = tmp_path / "two.jsonl"
    tasks = [
        {"id": "sum", "question": "What is 3*45+2*12?", "tools": ["calculator"], "check": {"number": 159}},
        {
            "id": "mayor",
            "question": "Who is the mayor of Calder?",
            "tools": ["search"],
            "check": {"contains": ["Dahl"]},
        },
    ]
    suite.write_text("".join(json.dumps(each) + "\n" for each in tasks))
    out = tmp_path / "out"
    done = localreact("eval", str(suite), "--rounds", "2", "--deterministic", "-o", str(out), "--no-html")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("json/llguidance: 2/2 = 100.0%")
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    (arm,) = summary["arms"]
    assert arm["ledgers"]["format_failure"]["count"] == arm["ledgers"]["forged"]["count"] == 0
    assert arm["ledgers"]["format_failure"]["of"] == 4
    assert summary["settings"]["deterministic"] is True
    assert all(each == {"count": 2, "of": 2} for each in arm["drift"]["identical"].values())
    assert arm["drift"]["changed"] == []
    assert arm["cost"]["forced"] > 0
    assert arm["cost"]["tokens_per_second"] > 0
    again = localreact("eval", "report", str(out), "--no-html")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert json.loads((out / "summary.json").read_text("utf-8")) == summary


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["react31"], "there is no suite 'react31'"),
        (["react30", "--arms", "json/magic"], "there is no arm 'json/magic'"),
        (["react30", "--arms", "json/free,,text/free"], "an empty name"),
        (["react30", "--rounds", "0"], "at least 1"),
        (["react30", "-m", "nothing.gguf"], "there is no model 'nothing.gguf'"),
        (["react30", "--deterministic", "-j", "2"], "side by side on one model aren't deterministic"),
        (["report", "."], "holds no evaluation"),
        (["compare", ".", "."], "holds no evaluation"),
    ],
)
def test_wrong_use_is_explained(arguments: list[str], said: str, tmp_path: Path) -> None:
    options = [] if arguments[0] == "compare" else ["--no-html"]
    out = [] if arguments[0] in ("compare", "report") else ["-o", str(tmp_path / "out")]
    done = localreact("eval", *arguments, *options, *out)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_line_of_a_suite_is_named(tmp_path: Path) -> None:
    path = write_suite(tmp_path, {}, {"id": "t1"})
    done = localreact("eval", str(path), "--no-html")
    assert (done.returncode, done.stdout) == (2, "")
    assert "line 2: the id 't1' is taken by line 1" in done.stderr


def test_options_may_stand_before_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, CALL, ANSWER)
    path = str(write_suite(tmp_path, {}))
    out = str(tmp_path / "out")
    done = CliRunner().invoke(app, ["eval", "--no-html", "--arms", "text/free+stops", "-o", out, path])
    assert done.exit_code == 0, done.output
    assert "text/free+stops: 1/1 = 100.0%" in done.output


def test_what_is_not_measured_makes_the_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = EndpointError("the server is gone")
    scripted(monkeypatch, CALL, ANSWER, gone, gone, CALL, NOTHING)
    path, out = str(write_suite(tmp_path, {}, {})), str(tmp_path / "out")
    command = ["eval", path, "--arms", "text/free+stops", "--retries", "1", "-o", out, "--no-html"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "1 lost to the endpoint" in done.output
    assert "1 of 2 tasks aren't measured; the same command goes on" in done.output
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert "text/free+stops: 1/2 = 50.0%" in done.output


def test_how_a_model_is_opened_can_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def opened(*options: object, gpu_layers: int) -> ScriptedEndpoint:
        asked.append((*options, gpu_layers))
        return ScriptedEndpoint([CALL, ANSWER])

    monkeypatch.setattr(runner, "open_endpoint", opened)
    path, out = str(write_suite(tmp_path, {})), str(tmp_path / "out")
    command = ["eval", path, "-m", "some", "--arms", "text/free+stops", "-o", out, "--no-html"]
    options = ["--ctx", "512", "-t", "1", "-ngl", "2", "--deterministic"]
    assert CliRunner().invoke(app, [*command, *options]).exit_code == 0
    assert asked == [("some", 512, 1, "free", True, 2)]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, UsageError)
    assert "deterministic True, not False" in str(done.exception)


def test_models_and_replicas_of_a_server_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def opened(model: str, *options: object, **more: object) -> ScriptedEndpoint:
        asked.append(model)
        return ScriptedEndpoint([CALL, ANSWER])

    monkeypatch.setattr(runner, "open_endpoint", opened)
    path, out = str(write_suite(tmp_path, {})), str(tmp_path / "out")
    models = "some,openai:http://a/v1,http://b/v1#M,tgi:http://c"
    command = ["eval", path, "-m", models, "--arms", "text/free+stops", "-o", out, "--no-html"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert set(asked) == {"some", "openai:http://a/v1,http://b/v1#M", "tgi:http://c"}


def test_the_executor_can_be_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spread: list[Plan] = []

    def on_ray(plan: Plan, journal: Journal, cancel: threading.Event) -> Generator[Done, None, None]:
        spread.append(plan)
        yield from runner.execute(plan, journal, cancel)

    monkeypatch.setattr(evaluating, "execute_on_ray", on_ray)
    scripted(monkeypatch, CALL, ANSWER)
    path, out = str(write_suite(tmp_path, {})), str(tmp_path / "out")
    command = ["eval", path, "--arms", "text/free+stops", "-o", out, "--no-html"]
    assert CliRunner().invoke(app, [*command, "--executor", "spark"]).exit_code == 2
    assert CliRunner().invoke(app, [*command, "--executor", "ray", "-j", "3"]).exit_code == 0
    assert [each.parallel for each in spread] == [3]


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(ScriptedEndpoint):
        def count(self, prompt):  # type: ignore[no-untyped-def]
            if len(self.prompts) == 3:
                signal.raise_signal(signal.SIGINT)
                self.prompts.append(prompt)
            return super().count(prompt)

    endpoint = Interrupted([CALL, ANSWER, CALL, ANSWER])
    monkeypatch.setattr(runner, "open_endpoint", lambda *options, **more: endpoint)
    path, out = str(write_suite(tmp_path, {}, {})), str(tmp_path / "out")
    command = ["eval", path, "--arms", "text/free+stops", "-o", out, "--no-html"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "1 of 2 tasks aren't measured" in done.output
    assert (tmp_path / "out" / "journal.jsonl").read_text().count("\n") == 1


def test_comparing_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, CALL, ANSWER, CALL, NOTHING)
    path, out = str(write_suite(tmp_path, {})), str(tmp_path / "out")
    arms = "text/free,text/free+stops"
    assert CliRunner().invoke(app, ["eval", path, "--arms", arms, "-o", out, "--no-html"]).exit_code == 0
    command = ["eval", "compare", f"{out}#text/free", f"{out}#text/free+stops"]
    done = CliRunner().invoke(app, command)
    assert "McNemar's exact test: p = 1" in done.output
    assert "only A: t1" in done.output
    document = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    assert (document["tasks"], document["only_a"]) == (1, ["t1"])


def test_help_names_the_commands() -> None:
    done = localreact("eval", "--help")
    assert done.returncode == 0
    for name in ("run", "report", "compare"):
        assert re.search(rf"\b{name}\b", done.stdout)

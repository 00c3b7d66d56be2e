"""`localreact trace`, as typed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from localreact import Agent, ScriptedEndpoint, Tool
from localreact.errors import EndpointError
from localreact.protocols import JsonProtocol
from localreact.trace import store
from localreact.trace.reading import load
from localreact.types import Finish, ToolCall
from tests.test_cli import localreact

DATA = Path(__file__).parent / "trace" / "data"
SMOLLM2 = str(DATA / "v1-smollm2.jsonl")
FINISHED = str(DATA / "v1-finished.jsonl")
WRITE = JsonProtocol().write
CALL = WRITE(ToolCall("I look it up.", "stock", {"sku": "A7"}))
FINISH = WRITE(Finish("I know it now.", answer="3"))


@pytest.fixture
def kept(stock: Tool) -> list[str]:
    """Three runs in the user's folder, the oldest first."""
    agent = Agent(
        ScriptedEndpoint([CALL, FINISH, CALL, FINISH, CALL, EndpointError("gone")]),
        [stock],
        trace=store.folder(),
    )
    ids = []
    for number in range(3):
        run = agent.run(f"question {number}")
        ids.append(run.run_id)
        os.utime(store.folder() / f"{run.run_id}.jsonl", (1000 + number, 1000 + number))
    return ids


def test_traces_are_listed_the_newest_first(kept: list[str]) -> None:
    done = localreact("trace", "list", "--json")
    rows = json.loads(done.stdout)
    assert [row["run_id"] for row in rows] == kept[::-1]
    assert [row["status"] for row in rows] == ["endpoint_error", "finished", "finished"]
    (store.folder() / "broken.jsonl").write_text("no trace\n")
    lines = localreact("trace", "list", "-n", "2").stdout.splitlines()
    assert len(lines) == 2
    assert "unreadable" in lines[0]
    assert "question 2" in lines[1]


def test_a_trace_is_named_by_path_id_prefix_or_last(kept: list[str]) -> None:
    for name in (kept[2], kept[2][:-3], "last", str(store.folder() / f"{kept[2]}.jsonl")):
        assert localreact("trace", "path", name).stdout == f"{store.folder() / kept[2]}.jsonl\n"
    assert localreact("trace", "path").stdout == f"{store.folder()}\n"
    for name, message in (
        ("nothing", "there is no trace 'nothing'"),
        ("20", "3 traces begin with '20'"),
        ("", "no trace ''"),
    ):
        done = localreact("trace", "path", name)
        assert done.returncode == 2
        assert message in done.stderr


def test_show_prints_the_run_as_it_was_seen() -> None:
    done = localreact("trace", "show", SMOLLM2)
    assert (done.returncode, done.stdout) == (0, "159\n")
    for wanted in (
        "What is 3*45+2*12?",
        "Thought: I should use the calculator.",
        "Action: calculator",
        "Observation: 159",
    ):
        assert wanted in done.stderr
    assert "You" not in done.stderr
    assert (
        '{"type": "tool_result", "result": "159"}' in localreact("trace", "show", SMOLLM2, "--prompts").stderr
    )
    assert json.loads(localreact("trace", "show", SMOLLM2, "--json").stdout)[0]["event"] == "RunStarted"
    assert "the trace ends here" in localreact("trace", "show", str(DATA / "v1-killed.jsonl")).stderr


def test_stats_count_by_author_and_part() -> None:
    document = json.loads(localreact("trace", "stats", SMOLLM2, "--json").stdout)
    assert document["tokens"] == {
        "sampled": 35,
        "forced": 30,
        "of reasoning": 0,
        "of other agents' runs": 0,
        "of prompts, evaluated": 633,
        "of prompts, reused": 637,
    }
    assert document["tools"]["calculator"]["calls"] == 1
    refused = localreact("trace", "stats", FINISHED).stdout
    assert "refused turns" in refused
    assert "2 (1 failed, 0 not made)" in refused


def test_diff_names_the_first_step_that_differs(tmp_path: Path) -> None:
    assert localreact("trace", "diff", FINISHED, FINISHED).stdout == "no difference\n"
    other = tmp_path / "other.jsonl"
    other.write_text(Path(FINISHED).read_text().replace("KeyError", "IndexError"))
    done = localreact("trace", "diff", FINISHED, str(other))
    assert done.returncode == 1
    assert "first in step 3; steps that differ: 3, 4" in done.stdout
    found = json.loads(localreact("trace", "diff", FINISHED, str(other), "--json").stdout)
    assert [(each["step"], each["what"]) for each in found] == [(3, "observation"), (4, "prompt")]
    missing = localreact("trace", "diff", FINISHED, str(DATA / "v1-killed.jsonl"), "--json")
    assert {"step": 4, "what": "step", "a": "made", "b": None} in json.loads(missing.stdout)


def test_html_is_written(tmp_path: Path) -> None:
    assert localreact("trace", "html", SMOLLM2).stdout.startswith("<!doctype html>")
    assert localreact("trace", "html", SMOLLM2, "-o", str(tmp_path / "run.html")).returncode == 0
    assert "</html>" in (tmp_path / "run.html").read_text()
    assert localreact("trace", "html", SMOLLM2, "-o", str(tmp_path)).returncode == 2


def test_replay_says_whether_it_came_as_recorded(kept: list[str], tmp_path: Path) -> None:
    done = localreact("trace", "replay", kept[0])
    assert (done.returncode, done.stdout) == (0, "the same: 9 events\n")
    path = tmp_path / "run.jsonl"
    shutil.copy(SMOLLM2, path)
    assert localreact("trace", "replay", str(path)).returncode == 2  # of version 1
    done = localreact("trace", "replay", str(path), "-T", "calculator", "-T", "search", "--execute")
    assert done.returncode == 0, done.stdout
    path.write_text(path.read_text().replace('"content": "159"', '"content": "160"'))
    done = localreact("trace", "replay", str(path), "-T", "calculator", "-T", "search", "--execute", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["step"] == 1


def test_prune_deletes_what_it_is_told(kept: list[str]) -> None:
    assert localreact("trace", "prune").returncode == 2
    assert json.loads(localreact("trace", "prune", "--keep", "2", "--json").stdout) == [
        str(store.folder() / f"{kept[0]}.jsonl")
    ]
    assert localreact("trace", "prune", "--days", "1").stdout == "2 deleted\n"
    assert localreact("trace", "list").stdout == ""


def test_a_killed_run_is_resumed_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    whole = localreact("run", "What is 3*45+2*12?", "--trace", str(path), "-q")
    assert whole.stdout == "159\n"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:6]) + b'{"event": "Step')
    done = localreact("run", "--resume", str(path), "--json", "-q")
    document = json.loads(done.stdout)
    assert (done.returncode, document["answer"], document["trace"]) == (0, "159", str(path))
    assert len(document["steps"]) == 2
    assert load(path).ended is not None
    for arguments, message in (
        (["--resume", str(path)], "there is nothing to resume"),
        (["What?", "--resume", str(path)], "has its question"),
        (["--resume", "nowhere"], "there is no trace 'nowhere'"),
    ):
        again = localreact("run", *arguments)
        assert again.returncode == 2
        assert message in again.stderr

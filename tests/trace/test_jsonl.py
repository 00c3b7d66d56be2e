from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localreact import Agent, ScriptedEndpoint, Tool
from localreact.errors import TraceError
from localreact.protocols import JsonProtocol
from localreact.trace.jsonl import TRACE_VERSION, read_trace
from localreact.types import Finish, ToolCall

WRITE = JsonProtocol().write
CALL = WRITE(ToolCall("I look it up.", "stock", {"sku": "A7"}))
FINISH = WRITE(Finish("I know it now.", answer="3"))


def test_a_trace_holds_the_whole_run(tmp_path: Path, stock: Tool) -> None:
    path = tmp_path / "deep" / "run.jsonl"
    run = Agent(ScriptedEndpoint([CALL, FINISH]), [stock], trace=path).run("How many A7 are left?")
    records = read_trace(path)
    assert [record["event"] for record in records] == [
        "RunStarted",
        *("StepStarted", "TurnCompleted", "TurnRead", "ToolStarted", "ToolEnded"),
        *("StepStarted", "TurnCompleted", "TurnRead"),
        "RunEnded",
    ]
    assert records[0]["trace"] == TRACE_VERSION
    assert records[0]["run_id"] == run.run_id
    assert records[0]["protocol"] == "react-json/1"
    assert records[0]["fingerprint"] == "scripted"
    assert records[2]["completion"]["text"] == CALL
    assert records[4]["intent"] == "I look it up."
    assert records[5]["observation"] == {
        "tool": "stock",
        "content": "3",
        "ok": True,
        "executed": True,
        "unknown": False,
        "excerpt": None,
        "note": "",
    }
    assert records[4]["call_id"] == records[5]["call_id"] == f"{run.run_id}:1"
    assert records[-1]["status"] == "finished"
    assert records[-1]["answer"] == "3"
    asked = "".join(segment["text"] for segment in records[1]["prompt"])
    assert "How many A7 are left?" in asked
    assert "A7 are left" not in "".join(segment["text"] for segment in records[6]["prompt"])


def test_a_folder_gets_a_file_per_run(tmp_path: Path) -> None:
    agent = Agent(ScriptedEndpoint([FINISH, FINISH]), trace=tmp_path)
    runs = [agent.run("a"), agent.run("b")]
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(run.run_id for run in runs)


def test_a_trace_that_cannot_be_written_stops_the_run_before_the_model(tmp_path: Path, stock: Tool) -> None:
    endpoint = ScriptedEndpoint([CALL])
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TraceError, match="can't be written"):
        Agent(endpoint, [stock], trace=tmp_path / "file" / "run.jsonl").run("x")
    assert not endpoint.prompts


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_stops_the_run_with_an_error() -> None:
    with pytest.raises(TraceError, match="No space left"):
        Agent(ScriptedEndpoint([FINISH]), trace="/dev/full").run("x")


def test_a_stream_that_nobody_reads_on_is_recorded_as_cancelled(tmp_path: Path, stock: Tool) -> None:
    path = tmp_path / "run.jsonl"
    running = Agent(ScriptedEndpoint([CALL, FINISH]), [stock], trace=path).stream("x")
    for event in running:
        if type(event).__name__ == "ToolEnded":
            break
    running.close()
    assert read_trace(path)[-1]["status"] == "cancelled"
    with pytest.raises(Exception, match="hasn't ended"):
        _ = running.outcome


def test_closing_a_run_that_has_ended_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    running = Agent(ScriptedEndpoint([FINISH]), trace=path).stream("x")
    for event in running:
        if type(event).__name__ == "RunEnded":
            break
    running.close()
    assert [r["status"] for r in read_trace(path) if r["event"] == "RunEnded"] == ["finished"]
    assert running.outcome.status == "finished"


def test_a_bug_still_ends_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(RuntimeError):
        Agent(ScriptedEndpoint([RuntimeError("a bug")]), trace=path).run("x")
    assert "a bug" in read_trace(path)[-1]["reason"]


SCRIPT = """
import sys, time
from localreact import Agent, ScriptedEndpoint, tool
@tool
def hang(a: int) -> int:
    print("hanging", flush=True)
    time.sleep(60)
    return a
Agent(ScriptedEndpoint([sys.argv[2]]), [hang], trace=sys.argv[1]).run("x")
"""


def test_a_trace_survives_kill_9_up_to_the_last_event(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    reply = WRITE(ToolCall("I hang about.", "hang", {"a": 1}))
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, path, reply], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "hanging\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    records = read_trace(path)
    assert records[-1]["event"] == "ToolStarted"
    assert records[-1]["arguments"] == {"a": 1}


def test_a_line_cut_short_at_the_end_is_left_out_and_one_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    good = json.dumps({"event": "RunStarted", "at": time.time()})
    path.write_text(f'{good}\n{good}\n{{"event": "Step')
    assert len(read_trace(path)) == 2
    path.write_text(f'{good}\n{{"event": "Step\n{good}\n')
    with pytest.raises(TraceError, match="line 2"):
        read_trace(path)
    with pytest.raises(TraceError, match="can't be read"):
        read_trace(tmp_path / "nowhere.jsonl")

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localreact import Agent, ScriptedEndpoint, Tool
from localreact.errors import TraceError
from localreact.protocols import JsonProtocol
from localreact.trace.events import RunEnded, RunStarted, ToolEnded, ToolStarted, TurnCompleted, TurnRead
from localreact.trace.jsonl import PASSING, TRACE_VERSION, TraceWriter, read_lines
from localreact.trace.reading import Unknown, load
from localreact.types import Completion, Finish, Observation, Span, Timings, ToolCall, Usage

DATA = Path(__file__).parent / "data"
STARTED = RunStarted("id", "question", "react-json/1", "m", "f", "", "plain", (), {}, "0")


def written(path: Path, *events: Any) -> Path:
    with TraceWriter(path) as writer:
        for event in (STARTED, *events):
            writer.write(event)
    return path


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
texts = st.text(st.characters(), max_size=60)  # lone surrogates too


@given(st.dictionaries(st.text(), json_values, max_size=4), texts, texts)
def test_what_is_written_is_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, arguments: dict[str, Any], text: str, shown: str
) -> None:
    events = [
        TurnCompleted(
            1, Completion(text, "complete", (1, 2), (Span("forced", text, (1, 2)),), Usage(5, 3, 1, 1))
        ),
        TurnRead(1, ToolCall(text, "tool", arguments, ("a",))),
        ToolStarted(1, "id:1", "tool", arguments),
        ToolEnded(1, "id:1", Observation("tool", text, ok=False), 0.25, shown),
        TurnRead(2, Finish(text, answer=shown, value=arguments)),
    ]
    path = written(tmp_path_factory.mktemp("t") / "run.jsonl", *events)
    assert load(path).events == [STARTED, *events]


def test_a_whole_run_is_read_back(tmp_path: Path, stock: Tool) -> None:
    write = JsonProtocol().write
    replies = [
        write(ToolCall("I look it up.", "stock", {"sku": "A7"})),
        write(Finish("I know it.", answer="3")),
    ]
    path = tmp_path / "run.jsonl"
    events = list(Agent(ScriptedEndpoint(replies), [stock], trace=path).stream("x"))
    read = load(path)
    assert read.version == TRACE_VERSION
    assert [type(e) for e in read.events] == [type(e) for e in events if not isinstance(e, PASSING)]
    assert read.ended is not None
    assert math.isclose(read.ended.seconds, asdict(events[-1])["seconds"], abs_tol=1e-5)


@pytest.mark.parametrize(
    ("name", "status", "events"),
    [("v1-finished", "finished", 18), ("v1-killed", None, 8), ("v1-smollm2", "finished", 10)],
)
def test_traces_of_older_versions_stay_readable(name: str, status: str | None, events: int) -> None:
    trace = load(DATA / f"{name}.jsonl")
    assert (trace.version, len(trace.events), trace.unknown) == (1, events, ())
    assert (trace.ended.status if trace.ended else None) == status
    turns = [event.turn for event in trace.events if isinstance(event, TurnRead)]
    assert isinstance(turns[0], ToolCall)


def test_what_a_newer_version_added_is_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", RunEnded("finished", "3", None, "", 0, Usage(), Timings(), 1.0))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0] |= {"trace": TRACE_VERSION + 1, "colour": "green"}
    lines.insert(1, {"event": "Daydreamed", "at": 1.0, "of": "sheep"})
    lines.insert(2, {"event": "TurnRefused", "at": 1.0, "phase": "moon"})  # one of ours, changed
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = load(path)
    assert trace.unknown == ("Daydreamed", "TurnRefused")
    assert isinstance(trace.entries[1].event, Unknown)
    assert trace.ended is not None


@pytest.mark.parametrize("cut", [1, 5, 60])
def test_a_last_line_cut_short_is_told_even_inside_a_character(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "run.jsonl", ToolStarted(1, "id:1", "tool", {"text": "日本" * 40}))
    whole = path.read_bytes()
    path.write_bytes(whole[: -cut - 1])
    trace = load(path)
    assert len(trace.entries) == 1
    assert trace.cut == len(whole.splitlines()[-1]) - cut
    assert trace.size == len(whole) - cut - 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no json", "line 2 is no event"),
        ("[1]", "line 2 is no event"),
        ('{"event": 3, "at": 1}', "line 2 is no event"),
        ('{"event": "TurnRefused", "step": 1, "problem": "x"}', "line 2: TurnRefused has no time"),
        ('{"event": "TurnRefused", "at": 1, "step": 1}', "line 2: TurnRefused.problem: Field required"),
        ('{"event": "TurnRefused", "at": 1, "step": "one", "problem": ""}', "line 2: TurnRefused.step"),
    ],
)
def test_a_line_that_is_no_event_is_an_error_that_names_it(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path / "run.jsonl")
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(TraceError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no run"),
        (b"\x00\xff\n", "line 1 is no event"),
        (b'{"event": "StepStarted", "at": 1}\n', "holds no run"),
        (b'{"event": "RunStarted", "at": 1}\n', "has no version"),
        (b'{"trace": 1, "event": "RunStarted", "at": 1}\n', "line 1: RunStarted"),
        (b'{"trace": 99, "event": "RunStarted", "at": 1}\n', "of a newer version"),
    ],
)
def test_a_file_that_is_no_trace_is_told(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        load(path)
    with pytest.raises(TraceError, match="can't be read"):
        load(tmp_path / "nowhere")


def test_the_time_between_two_sittings_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    began = json.loads(written(path).read_text())
    path.write_text("".join(json.dumps(began | {"at": at}) + "\n" for at in (10, 1000)))
    assert load(path).seconds == 0
    refused = {"event": "TurnRefused", "step": 1, "problem": ""}
    lines = [began | {"at": 10}, refused | {"at": 12}, began | {"at": 1000}, refused | {"at": 1003}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert load(path).seconds == 5
    assert read_lines(path).cut == 0

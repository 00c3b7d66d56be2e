"""Permission, paging and unknown outcomes, in runs that are resumed or replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localreact import Agent, ScriptedEndpoint, Tool, tool
from localreact.errors import EndpointError
from localreact.protocols import JsonProtocol
from localreact.replay import replay
from localreact.tools import Call, current_call
from localreact.trace.events import ToolStarted
from localreact.trace.jsonl import TraceWriter
from localreact.trace.reading import load
from localreact.types import Finish, ToolCall

WRITE = JsonProtocol().write
FINISH = WRITE(Finish("I know it now.", answer="3"))
DOWN = EndpointError("the server is down")


def calling(name: str, **arguments: Any) -> str:
    return WRITE(ToolCall("I call it now.", name, arguments))


def test_nobody_is_asked_again_about_what_was_decided(tmp_path: Path) -> None:
    asked: list[int] = []
    paid: list[int] = []

    @tool(effects=True, cost=1)
    def pay(amount: int) -> str:
        """Pay an amount of money."""
        paid.append(amount)
        return "paid"

    def approval(call: Call) -> bool:
        asked.append(call.arguments["amount"])
        return bool(call.arguments["amount"] != 2)

    path = tmp_path / "run.jsonl"

    def agent(*replies: str | BaseException) -> Agent:
        return Agent(ScriptedEndpoint(replies), [pay], approval=approval, max_cost=2, trace=path)

    first = agent(calling("pay", amount=1), calling("pay", amount=2), DOWN).run("x")
    assert (first.status, asked, paid) == ("endpoint_error", [1, 2], [1])
    run = agent(calling("pay", amount=3), calling("pay", amount=4), FINISH).resume(path)
    assert run.status == "finished"
    assert asked == [1, 2, 3]
    assert paid == [1, 3]  # and what was spent before counts
    assert run.steps[3].observation is not None
    assert "the cost to 3 of 2" in run.steps[3].observation.content
    assert replay(load(path)).difference == ""
    assert replay(load(path), [pay], execute=False).difference == ""
    assert asked == [1, 2, 3]


def test_a_result_is_read_on_where_it_was_left_off(tmp_path: Path) -> None:
    text = "".join(chr(0x4E00 + number) for number in range(9000))

    @tool(fields=["a"], max_chars=5000, tail=10)
    def give() -> dict[str, str]:
        """Give something back."""
        return {"a": text, "b": ""}

    more = calling("more", ref="1")
    path = tmp_path / "run.jsonl"
    Agent(ScriptedEndpoint([calling("give"), more, DOWN]), [give], trace=path).run("x")
    endpoint = ScriptedEndpoint([more, FINISH])
    run = Agent(endpoint, [give], trace=path).resume(path)
    assert run.status == "finished"
    pages = [step.observation for step in run.steps[1:3] if step.observation]
    view = '{"a": "' + text + '"}'
    assert pages[0].content == view[4990:8990]
    assert pages[1].content.startswith(view[8990:] + "\n{")
    assert replay(load(path)).difference == ""


@pytest.mark.parametrize("length", [3, 4500])
def test_a_result_that_was_shown_whole_is_shown_whole_again(tmp_path: Path, length: int) -> None:
    @tool(max_chars=5000)
    def give() -> str:
        """Give something back."""
        return "x" * length

    path = tmp_path / "run.jsonl"
    Agent(ScriptedEndpoint([calling("give"), DOWN]), [give], trace=path).run("x")
    run = Agent(ScriptedEndpoint([FINISH]), [give], trace=path).resume(path)
    assert run.status == "finished"
    assert replay(load(path)).difference == ""


@pytest.mark.parametrize("effects", [True, False])
def test_a_call_that_a_crash_cut_off_is_of_unknown_outcome(
    tmp_path: Path, effects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    @tool(effects=effects)
    def pay(amount: int) -> str:
        """Pay an amount of money."""
        calls.append(current_call().key)
        return "paid"

    path = tmp_path / "run.jsonl"
    kept = TraceWriter.write

    def crashing(self: TraceWriter, event: Any) -> None:
        if not calls:  # nothing is written once the tool has run
            kept(self, event)

    monkeypatch.setattr(TraceWriter, "write", crashing)
    call = calling("pay", amount=1)
    Agent(ScriptedEndpoint([call, DOWN]), [pay], trace=path).run("x")
    monkeypatch.setattr(TraceWriter, "write", kept)
    assert isinstance(load(path).events[-1], ToolStarted)

    run = Agent(ScriptedEndpoint([call, FINISH if not effects else calling("pay", amount=2), FINISH]), [pay])
    resumed = run.resume(path)
    first, second = (step.observation for step in resumed.steps[:2])
    assert first is not None
    assert second is not None
    assert "outcome is unknown" in first.content
    assert first.unknown is effects
    assert second.executed is not effects  # the very same call: only where it changes nothing
    assert resumed.status == "finished"
    assert calls[0] == f"{resumed.run_id}:1"
    assert len(calls) == 2
    assert calls[1] == f"{resumed.run_id}:{3 if effects else 2}"


def made(name: str) -> Tool:
    return tool(name=name, description="Do something or other.")(lambda: 1)


def test_a_replay_needs_no_tool_to_read_on(tmp_path: Path) -> None:
    @tool
    def give() -> str:
        """Give something back."""
        return "x" * 9000

    path = tmp_path / "run.jsonl"
    replies = [calling("more", ref="1"), calling("give"), calling("more", ref="2"), calling("other"), FINISH]
    Agent(ScriptedEndpoint(replies), [give, made("other")], trace=path).run("x")
    assert replay(load(path)).difference == ""

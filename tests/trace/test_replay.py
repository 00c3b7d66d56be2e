"""Replaying: the loop of today on the model outputs of then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localreact import Agent, Run, ScriptedEndpoint, Tool, policy, tool
from localreact.checks import Check
from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import EndpointError, UsageError
from localreact.guards import Guards
from localreact.protocols import JsonProtocol
from localreact.replay import replay
from localreact.tools.builtin import load_tools
from localreact.trace.events import Compacted, TurnCompleted
from localreact.trace.html import page
from localreact.trace.jsonl import read_trace
from localreact.trace.reading import Trace, load
from localreact.types import Evidence, Finish, ToolCall

DATA = Path(__file__).parent / "data"
WRITE = JsonProtocol().write
CALL = WRITE(ToolCall("I look it up.", "stock", {"sku": "A7"}))
FINISH = WRITE(Finish("I know it now.", answer="3"))


def recorded(path: Path, tools: list[Tool], *replies: str | BaseException, **options: Any) -> Trace:
    Agent(ScriptedEndpoint(replies), tools, trace=path / "run.jsonl", **options).run("How many A7 are left?")
    return load(path / "run.jsonl")


@pytest.mark.parametrize(
    "replies",
    [
        [CALL, FINISH],
        [CALL, "It is 3.", CALL, CALL, FINISH],
        ["prose", "prose", "prose"],
        [CALL, EndpointError("gone")],
        [CALL, KeyboardInterrupt()],
        [CALL] * 8,
    ],
)
def test_a_replay_of_the_same_code_is_the_same(
    tmp_path: Path, stock: Tool, replies: list[str | BaseException]
) -> None:
    trace = recorded(tmp_path, [stock], *replies)
    result = replay(trace)
    assert result.difference == ""
    assert result.events >= 3


def test_a_run_that_was_asked_to_finish_replays_as_it_was(tmp_path: Path, stock: Tool) -> None:
    path = tmp_path / "run.jsonl"
    running = Agent(ScriptedEndpoint([CALL, CALL, FINISH]), [stock], trace=path).stream("x")
    for event in running:
        if isinstance(event, TurnCompleted) and event.step == 2:
            running.finish()
    assert running.outcome.reason == "interrupted"
    assert replay(load(path)).difference == ""


def test_what_the_model_said_differs_when_it_is_read_differently(tmp_path: Path, stock: Tool) -> None:
    path = tmp_path / "run.jsonl"
    recorded(tmp_path, [stock], CALL, FINISH)
    path.write_text(path.read_text().replace(r"\"sku\": \"A7\"", r"\"sku\": \"B2\""))
    result = replay(load(path))
    assert result.step == 1
    assert "turn" in result.difference
    assert "B2" in result.difference


def test_another_result_of_a_tool_is_found_when_calls_are_executed(tmp_path: Path, stock: Tool) -> None:
    trace = recorded(tmp_path, [stock], CALL, FINISH)
    assert replay(trace, [stock], execute=True).difference == ""

    @tool(name="stock")
    def sold_out(sku: str) -> int:
        """How many of an article are left."""
        return 0

    assert replay(trace, [sold_out]).difference == ""
    result = replay(trace, [sold_out], execute=True)
    assert (result.step, result.difference) == (1, "observation: recorded: '3'; now: '0'")
    with pytest.raises(UsageError, match="no tools to execute"):
        replay(trace, execute=True)


def test_another_description_of_a_tool_shows_in_the_prompt(tmp_path: Path, stock: Tool) -> None:
    @tool(name="stock")
    def described(sku: str) -> int:
        """How many are there?"""
        return 3

    result = replay(recorded(tmp_path, [stock], CALL, FINISH), [described])
    assert result.step == 1
    assert "How many are there?" in result.difference


def test_reasoning_and_evidence_are_replayed(tmp_path: Path) -> None:
    @tool
    def stock(sku: str) -> str:
        """How many of an article are left."""
        return "There are 3 of them left in the store."

    quote = Evidence(1, "3 of them left in the store")
    finish = WRITE(Finish("I know it now.", answer="3", evidence=(quote,)))
    trace = recorded(tmp_path, [stock], f"<think>Look it up?</think>{CALL}", finish, cite=True)
    assert trace.ended is not None
    assert (trace.ended.status, trace.ended.evidence) == ("finished", (quote,))
    assert replay(trace).difference == ""
    text = page(trace)
    assert "Look it up?" in text
    assert "3 of them left in the store" in text


def test_an_answers_type_is_replayed(tmp_path: Path, stock: Tool) -> None:
    path = tmp_path / "run.jsonl"
    finish = FINISH.replace('"answer": "3"', '"answer": 3')
    Agent(ScriptedEndpoint([CALL, finish]), [stock], trace=path).run("x", answer=int)
    trace = load(path)
    assert trace.ended is not None
    assert (trace.ended.status, trace.ended.answer) == ("finished", "3")
    assert replay(trace).difference == ""


def test_a_run_of_a_grammar_and_its_real_tokens_replays_without_the_model(
    tiny: LlamaEndpoint, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    agent = Agent(tiny, load_tools(["calculator"], None), trace=path, max_steps=3, max_tokens=600)
    agent.run("What is 2+2?")
    assert replay(load(path), endpoint=tiny).difference == ""
    without = replay(load(path))
    assert without.difference == "" or "prompt" not in without.difference


def test_older_traces_replay_with_their_tools() -> None:
    trace = load(DATA / "v1-smollm2.jsonl")
    assert replay(trace, load_tools(["calculator", "search"], None)).difference == ""
    with pytest.raises(UsageError, match="Give the tools"):
        replay(trace)


def test_a_run_that_was_resumed_replays_as_one(tmp_path: Path, stock: Tool) -> None:
    recorded(tmp_path, [stock], CALL, EndpointError("gone"))
    Agent(ScriptedEndpoint([CALL, FINISH]), [stock]).resume(tmp_path / "run.jsonl")
    trace = load(tmp_path / "run.jsonl")
    assert replay(trace).difference == ""
    assert [record["event"] for record in read_trace(trace.path)].count("RunStarted") == 2


def brief(run: Run) -> str:
    return "answer in digits" if not str(run.answer).isdigit() else ""


def broken(run: Run) -> str:
    return "never good"


@pytest.mark.parametrize("check", [brief, broken])
def test_checks_that_were_made_then_are_replayed_without_them(
    tmp_path: Path, stock: Tool, check: Check
) -> None:
    vague = FINISH.replace('"3"', '"three"')
    trace = recorded(tmp_path, [stock], CALL, vague, vague, FINISH, checks=[check])
    assert trace.ended is not None
    assert trace.ended.status == ("finished" if check is brief else "partial")
    assert replay(trace).difference == ""


def test_a_run_that_guards_stopped_replays_with_its_own_thresholds(tmp_path: Path, stock: Tool) -> None:
    guards = Guards(repeats=3, stuck=2, exempt=("other",))
    trace = recorded(tmp_path, [stock], *[CALL] * 6, guards=guards, max_steps=20)
    assert trace.ended is not None
    assert trace.ended.status == "stuck"
    assert replay(trace).difference == ""


def test_a_run_that_was_short_of_time_replays_as_it_was(
    tmp_path: Path, stock: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(policy, "is_late", lambda state, budgets: len(state.steps) == 1)
        trace = recorded(tmp_path, [stock], CALL, FINISH, deadline=100.0)
    assert trace.ended is not None
    assert (trace.ended.status, trace.ended.reason) == ("partial", "deadline")
    assert replay(trace).difference == ""


def test_a_run_with_a_full_context_replays(tmp_path: Path, stock: Tool) -> None:
    pages = (f"Entry {n}: on day {n * 37} the ship lay {n * 11} miles off Cape {n}." for n in range(99))

    @tool
    def read(page: str) -> str:
        """Read on in the book."""
        return next(pages)

    replies = [WRITE(ToolCall("I read on now.", "read", {"page": str(n)})) for n in range(20)]
    path = tmp_path / "run.jsonl"
    endpoint = ScriptedEndpoint([*replies, FINISH], n_ctx=1000)
    run = Agent(endpoint, [read], trace=path, examples=0, max_steps=30).run("What is there?")
    assert run.status == "finished"
    assert any(isinstance(event, Compacted) for event in load(path).events)
    assert replay(load(path), endpoint=ScriptedEndpoint([], n_ctx=1000)).difference == ""
    assert replay(load(path)).difference == ""

"""Replaying: the loop of today on the model outputs of then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localreact import Agent, ScriptedEndpoint, Tool, tool
from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import EndpointError, UsageError
from localreact.protocols import JsonProtocol
from localreact.replay import replay
from localreact.tools.builtin import load_tools
from localreact.trace.events import TurnCompleted
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

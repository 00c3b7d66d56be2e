"""The policy, on states made by a scripted endpoint."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from localreact import Agent, Run, ScriptedEndpoint, Tool, tool
from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import UsageError
from localreact.protocols import JsonProtocol
from localreact.tools.builtin import load_tools
from localreact.trace.events import StepStarted
from localreact.types import Finish, ToolCall

WRITE = JsonProtocol().write
FINISH = WRITE(Finish("I know it now.", answer="3"))


def call(sku: str = "A7", tool: str = "stock") -> str:
    return WRITE(ToolCall("I look it up.", tool, {"sku": sku}))


@pytest.fixture
def price() -> Tool:
    @tool
    def price(sku: str) -> int:
        """What an article costs."""
        return 12

    return price


def turns(agent: Agent, **options: Any) -> tuple[list[StepStarted], Run]:
    running = agent.stream("How many A7 are left?", **options)
    steps = [event for event in running if isinstance(event, StepStarted)]
    return steps, running.outcome


# --- tool choice


def test_none_leaves_the_answer_only(stock: Tool) -> None:
    steps, run = turns(Agent(ScriptedEndpoint([FINISH]), [stock]), tool_choice="none")
    assert (steps[0].tools, steps[0].answer, run.status) == ((), True, "finished")


def test_required_holds_until_a_call_was_made(stock: Tool) -> None:
    agent = Agent(ScriptedEndpoint([FINISH, call(), FINISH]), [stock], evidence_gate=False)
    steps, run = turns(agent, tool_choice="required")
    assert [step.answer for step in steps] == [False, False, True]
    assert run.answer == "3"


def test_a_named_tool_is_called_first(stock: Tool, price: Tool) -> None:
    agent = Agent(ScriptedEndpoint([call(), call(tool="price"), call(), FINISH]), [stock, price])
    steps, run = turns(agent, tool_choice="price")
    assert [step.tools for step in steps[:3]] == [("price",), ("price",), ("stock", "price")]
    assert [step.observation.executed for step in run.steps if step.observation] == [False, True, True]


@pytest.mark.parametrize("choice", ["search", ""])
def test_a_choice_of_no_tool_is_a_usage_error(stock: Tool, choice: str) -> None:
    with pytest.raises(UsageError, match="no tool is named"):
        Agent(ScriptedEndpoint([]), [stock]).run("x", tool_choice=choice)


def test_a_call_cannot_be_required_without_tools() -> None:
    with pytest.raises(UsageError, match="there is no tool"):
        Agent(ScriptedEndpoint([])).run("x", tool_choice="required")


def test_the_real_model_obeys_a_choice(smollm2: LlamaEndpoint) -> None:
    agent = Agent(smollm2, load_tools(["calculator", "search"], None), max_steps=2)
    first = agent.run("What is 17*23?", tool_choice="search").steps[0].turn
    assert isinstance(first, ToolCall)
    assert first.tool == "search"
    assert isinstance(agent.run("What is 17*23?", tool_choice="none").steps[0].turn, Finish)


# --- dead calls


def test_a_call_repeated_without_news_leaves_the_language(stock: Tool) -> None:
    agent = Agent(ScriptedEndpoint([call(), call(), call(), call("B2"), FINISH]), [stock])
    run = agent.run("How many A7 are left?")
    executed = [step.observation.executed for step in run.steps if step.observation]
    assert executed == [True, True, False, True]
    assert run.steps[2].observation is not None
    assert "made before" in run.steps[2].observation.content


def test_a_poll_whose_result_changes_is_left_alone() -> None:
    counter = itertools.count()

    @tool
    def poll(job: str) -> int:
        """How far a job is."""
        return next(counter)

    script = [WRITE(ToolCall("I look again.", "poll", {"job": "a"}))] * 5
    run = Agent(ScriptedEndpoint([*script, FINISH]), [poll]).run("Is it done?")
    assert [step.observation.executed for step in run.steps if step.observation] == [True] * 5


def test_when_the_only_tool_is_gone_the_run_can_still_end() -> None:
    @tool
    def ping() -> str:
        """Say hello."""
        return "pong"

    again = WRITE(ToolCall("I say hello again.", "ping", {}))
    steps, run = turns(Agent(ScriptedEndpoint([again, again, again, FINISH]), [ping]))
    assert [step.tools for step in steps] == [("ping",), ("ping",), (), ()]
    assert run.status == "finished"


def test_a_model_that_would_repeat_itself_cannot(tiny: LlamaEndpoint) -> None:
    @tool
    def ping(word: bool) -> str:
        """Say hello."""
        return "pong"

    run = Agent(tiny, [ping], max_steps=6, evidence_gate=False).run("x", tool_choice="required")
    calls = [tuple(step.turn.arguments.items()) for step in run.steps if isinstance(step.turn, ToolCall)]
    assert all(calls.count(each) <= 2 for each in calls)

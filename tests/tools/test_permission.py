"""Approval and cost."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from localreact import Agent, Run, ScriptedEndpoint, Tool, tool
from localreact.errors import ToolDefinitionError, UsageError
from localreact.protocols import JsonProtocol
from localreact.tools import Call
from localreact.trace.events import ToolStarted
from localreact.types import Finish, ToolCall

WRITE = JsonProtocol().write
FINISH = WRITE(Finish("I know it now.", answer="3"))
MISSING = WRITE(Finish("I can't know it.", missing="the result"))


def pay(amount: Any = 3) -> str:
    return WRITE(ToolCall("I pay the bill.", "pay", {"amount": amount}))


class Till:
    def __init__(self, **options: Any) -> None:
        self.paid: list[int] = []

        @tool(**options)
        def pay(amount: int) -> str:
            """Pay an amount of money."""
            self.paid.append(amount)
            return "paid"

        self.tool: Tool = pay


def contents(run: Run) -> list[str]:
    return [step.observation.content for step in run.steps if step.observation]


def test_a_call_with_effects_is_made_when_it_is_approved() -> None:
    till, asked = Till(effects=True), list[Call]()

    def approval(call: Call) -> bool:
        assert not till.paid
        asked.append(call)
        return True

    agent = Agent(ScriptedEndpoint([pay(), FINISH]), [till.tool], approval=approval)
    started = [event for event in agent.stream("x") if isinstance(event, ToolStarted)]
    assert till.paid == [3]
    assert (asked[0].tool, asked[0].arguments, asked[0].intent) == ("pay", {"amount": 3}, "I pay the bill.")
    assert [event.approved for event in started] == [True]


def test_a_refusal_is_an_observation_and_nothing_was_begun() -> None:
    till = Till(effects=True)
    agent = Agent(ScriptedEndpoint([pay(), MISSING, MISSING]), [till.tool], approval=lambda call: False)
    events = list(running := agent.stream("x"))
    assert not till.paid
    assert not [event for event in events if isinstance(event, ToolStarted)]
    first = running.outcome.steps[0].observation
    assert first is not None
    assert (first.content, first.executed) == ("not executed: it needs a person's approval (refused)", False)


@pytest.mark.parametrize("answer", [None, 1, "yes"])
def test_only_true_is_a_yes(answer: Any) -> None:
    till = Till(effects=True)
    Agent(ScriptedEndpoint([pay(), MISSING, MISSING]), [till.tool], approval=lambda call: answer).run("x")
    assert not till.paid


def test_an_approval_that_fails_is_no_yes() -> None:
    def broken(call: Call) -> bool:
        raise OSError("the pager is off")

    till = Till(effects=True)
    run = Agent(ScriptedEndpoint([pay(), *[MISSING] * 7]), [till.tool], approval=broken).run("x")
    assert "asking failed: OSError: the pager is off" in contents(run)[0]
    assert not till.paid


def test_who_is_asked_about_what() -> None:
    cases: list[tuple[dict[str, Any], bool, int]] = [
        ({}, True, 0),  # nothing to ask about
        ({"effects": True}, False, 0),  # nobody to ask: approval is an option
        ({"effects": True, "approve": False}, True, 0),
        ({"approve": True}, True, 1),
    ]
    for options, approval, expected in cases:
        till, asked = Till(**options), list[Call]()
        agent = Agent(
            ScriptedEndpoint([pay(), FINISH]),
            [till.tool],
            approval=(lambda call, asked=asked: asked.append(call) or True) if approval else None,  # type: ignore[misc]
        )
        assert agent.run("x").status == "finished"
        assert (till.paid, len(asked)) == ([3], expected)


def test_a_tool_that_demands_approval_does_not_run_without_somebody_to_ask() -> None:
    till = Till(approve=True)
    run = Agent(ScriptedEndpoint([pay(), *[MISSING] * 7]), [till.tool]).run("x")
    assert not till.paid
    assert "nobody to ask" in contents(run)[0]


def test_nobody_is_asked_about_an_invalid_call() -> None:
    till, asked = Till(effects=True), list[Call]()

    def approval(call: Call) -> bool:
        asked.append(call)
        return True

    agent = Agent(ScriptedEndpoint([pay("three"), *[MISSING] * 7]), [till.tool], approval=approval)
    assert "invalid arguments at amount" in contents(agent.run("x"))[0]
    assert not asked


def test_a_call_approved_after_the_run_was_cancelled_is_not_made() -> None:
    till, cancel = Till(effects=True), threading.Event()

    def approval(call: Call) -> bool:
        cancel.set()
        return True

    run = Agent(ScriptedEndpoint([pay(), FINISH]), [till.tool], approval=approval).run("x", cancel)
    assert (run.status, till.paid) == ("cancelled", [])


# --- cost


def test_a_call_beyond_the_budget_is_not_made_and_said_to_be_so() -> None:
    till = Till(cost=2)
    run = Agent(ScriptedEndpoint([pay(1), pay(2), pay(3), FINISH]), [till.tool], max_cost=5).run("x")
    assert till.paid == [1, 2]
    assert contents(run)[2] == "not executed: it would bring the cost to 6 of 5 (nobody to ask)"
    assert run.status == "finished"


def test_the_user_is_asked_before_the_limit_is_passed() -> None:
    till, asked = Till(cost=2), list[tuple[int, float]]()

    def over_budget(call: Call, cost: float) -> bool:
        asked.append((call.arguments["amount"], cost))
        return bool(call.arguments["amount"] != 4)

    replies = [pay(1), pay(2), pay(3), pay(4), FINISH]
    agent = Agent(ScriptedEndpoint(replies), [till.tool], max_cost=4, over_budget=over_budget)
    run = agent.run("x")
    assert till.paid == [1, 2, 3]
    assert asked == [(3, 6), (4, 8)]
    assert contents(run)[3].endswith("(refused)")


def test_what_costs_nothing_is_free_and_refused_calls_cost_nothing() -> None:
    free, dear = Till(), Till(cost=3, name="buy")
    buy = WRITE(ToolCall("I buy it now.", "buy", {"amount": 9}))
    wrong = WRITE(ToolCall("I buy it now.", "buy", {"amount": "nine"}))
    agent = Agent(ScriptedEndpoint([wrong, pay(), buy, pay(4), FINISH]), [free.tool, dear.tool], max_cost=3)
    assert agent.run("x").status == "finished"
    assert (free.paid, dear.paid) == ([3, 4], [9])


def test_costs_are_counted_for_each_run() -> None:
    till = Till(cost=1)
    agent = Agent(ScriptedEndpoint([pay(), FINISH, pay(), FINISH]), [till.tool], max_cost=1)
    assert [agent.run("x").status for _ in range(2)] == ["finished", "finished"]
    assert till.paid == [3, 3]


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf")])
def test_costs_that_make_no_sense_are_refused(cost: float) -> None:
    with pytest.raises(ToolDefinitionError, match="cost"):
        Till(cost=cost)
    if cost != float("inf"):
        with pytest.raises(UsageError, match="max_cost"):
            Agent(ScriptedEndpoint([]), max_cost=cost)

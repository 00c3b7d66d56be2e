"""Running tools: time, threads, event loops."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from localreact import Agent, ScriptedEndpoint, Tool, Toolbox, tool
from localreact.budgets import Budgets
from localreact.errors import ToolDefinitionError, UsageError
from localreact.policy import Plan, Policy, Room, next_turn
from localreact.protocols import JsonProtocol
from localreact.run import RunState
from localreact.tools import current_call, execution
from localreact.trace.events import ToolEnded, ToolStarted
from localreact.trace.jsonl import read_trace
from localreact.types import Completion, Finish, Observation, ToolCall

WRITE = JsonProtocol().write


def calling(name: str, **arguments: Any) -> str:
    return WRITE(ToolCall("I call it now.", name, arguments))


FINISH = WRITE(Finish("I know it now.", answer="3"))
MISSING = WRITE(Finish("I can't know it.", missing="the result"))


def observed(function: Callable[..., Any] | Tool, **options: Any) -> Observation:
    box = Toolbox([function], **options)
    return box.execute(ToolCall("", box.specs[0].name, {}))


class Hang:
    """A tool that hangs until it is let go, or longer."""

    def __init__(self, effects: bool = False, timeout: float | None = 0.1) -> None:
        self.calls, self.gate, self.ended = 0, threading.Event(), threading.Event()

        @tool(effects=effects, timeout=timeout)
        def hang() -> str:
            """Hang about for a while."""
            self.calls += 1
            self.gate.wait(30)
            self.ended.set()
            return "TOO LATE"

        self.tool = hang


@pytest.fixture
def hung() -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.gate.set()


# --- time


def test_a_hung_tool_is_an_observation_and_its_late_result_appears_nowhere(
    hung: Hang, tmp_path: Path
) -> None:
    """OpenHands 9776."""
    released = threading.Event()

    @tool
    def release() -> str:
        """Let the hung tool go on."""
        hung.gate.set()
        released.set()
        assert hung.ended.wait(10)
        return "released"

    endpoint = ScriptedEndpoint([calling("hang"), calling("release"), FINISH])
    path = tmp_path / "run.jsonl"
    started = time.monotonic()
    run = Agent(endpoint, [hung.tool, release], trace=path).run("x")
    assert time.monotonic() - started < 1
    assert run.status == "finished"
    assert run.steps[0].observation == Observation("hang", "no result within 0.1 seconds", ok=False)
    assert hung.ended.is_set()
    assert "TOO LATE" not in path.read_text()
    assert all("TOO LATE" not in prompt.text for prompt in endpoint.prompts)


def test_the_agents_timeout_holds_for_tools_that_say_nothing_else() -> None:
    hang = Hang(timeout=None)
    assert observed(hang.tool, timeout=0.05).content == "no result within 0.05 seconds"
    agent = Agent(ScriptedEndpoint([calling("hang"), MISSING]), [hang.tool], tool_timeout=0.05)
    assert agent.run("x").status == "insufficient"
    hang.gate.set()


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_makes_no_sense_is_refused(timeout: float) -> None:
    with pytest.raises(ToolDefinitionError, match="timeout"):
        tool(timeout=timeout)(lambda: 1)
    with pytest.raises(UsageError, match="timeout"):
        Agent(ScriptedEndpoint([]), tool_timeout=timeout)


def test_the_runs_deadline_ends_the_waiting() -> None:
    hang = Hang(timeout=30)
    run = Agent(ScriptedEndpoint([calling("hang"), FINISH]), [hang.tool], deadline=0.2).run("x")
    hang.gate.set()
    assert run.status == "deadline"
    assert run.seconds < 1
    assert run.steps[0].observation is not None
    assert run.steps[0].observation.content == "no result before the run's time was up"


def test_cancelling_ends_the_waiting(tmp_path: Path) -> None:
    hang, cancel = Hang(timeout=30), threading.Event()
    path = tmp_path / "run.jsonl"
    agent = Agent(ScriptedEndpoint([calling("hang"), FINISH]), [hang.tool], trace=path)
    for event in (running := agent.stream("x", cancel)):
        if isinstance(event, ToolStarted):
            threading.Timer(0.05, cancel.set).start()
    hang.gate.set()
    assert running.outcome.status == "cancelled"
    assert running.outcome.seconds < 1
    assert read_trace(path)[-2]["observation"]["content"] == "no result before the run was cancelled"


def test_a_tool_can_see_that_nobody_waits_any_longer() -> None:
    seen = threading.Event()

    @tool(timeout=0.05)
    def watchful() -> None:
        if current_call().abandoned.wait(10):
            seen.set()

    assert not observed(watchful).ok
    assert seen.wait(10)


def test_a_result_in_time_is_not_waited_on() -> None:
    @tool
    def quick() -> int:
        return 1

    box = Toolbox([quick])
    started = time.monotonic()
    for _ in range(50):
        box.execute(ToolCall("", "quick", {}))
    assert time.monotonic() - started < 1


# --- effects


def test_a_call_with_effects_that_was_cut_off_is_of_unknown_outcome_and_not_made_again() -> None:
    hang = Hang(effects=True)
    endpoint = ScriptedEndpoint([calling("hang"), calling("hang"), MISSING])
    run = Agent(endpoint, [hang.tool]).run("x")
    hang.gate.set()
    first, second = (step.observation for step in run.steps[:2])
    assert first is not None
    assert second is not None
    assert (first.ok, first.executed, first.unknown) == (False, True, True)
    assert "may have taken effect" in first.content
    assert not second.executed
    assert hang.calls == 1


def test_a_call_of_unknown_outcome_leaves_the_grammar() -> None:
    @tool(effects=True)
    def pay(amount: int) -> str:
        """Pay an amount of money."""
        return "paid"

    state = RunState("x")
    unknown = Observation("pay", "no result", ok=False, unknown=True)
    state.add(Completion("", "eog"), ToolCall("", "pay", {"amount": 3}), unknown)
    plan = next_turn(state, Budgets(), Policy((pay.spec,)), Room(100, 4096))
    assert isinstance(plan, Plan)
    assert plan.spec.excluded == (("pay", {"amount": 3}),)

    def admits(amount: int) -> bool:
        return any(
            Draft202012Validator(dict(t.parameters)).is_valid({"amount": amount}) for t in plan.spec.tools
        )

    assert [admits(amount) for amount in (2, 3, 4)] == [True, False, True]


def test_a_call_of_unknown_outcome_is_not_repeated_and_others_are_made() -> None:
    @tool(effects=True, timeout=0.05)
    def pay(amount: int) -> str:
        """Pay an amount of money."""
        if amount == 3:
            current_call().abandoned.wait(10)
        return "paid"

    replies = [calling("pay", amount=3), calling("pay", amount=3), calling("pay", amount=4), FINISH]
    run = Agent(ScriptedEndpoint(replies), [pay]).run("x")
    seen = [step.observation for step in run.steps if step.observation]
    assert [each.executed for each in seen] == [True, False, True]
    assert seen[2].content == "paid"


def test_a_call_without_effects_may_be_made_again_after_a_timeout(hung: Hang) -> None:
    run = Agent(ScriptedEndpoint([calling("hang"), calling("hang"), MISSING]), [hung.tool]).run("x")
    assert [step.observation.executed for step in run.steps if step.observation] == [True, True]
    assert hung.calls == 2


def test_the_key_of_a_call_is_that_of_its_run_and_step_and_the_log_has_it_before_the_call() -> None:
    keys = []

    @tool(effects=True)
    def order(article: str) -> str:
        """Order an article from the shop."""
        call = current_call()
        keys.append((call.key, call.tool, dict(call.arguments), call.intent))
        return "ordered"

    agent = Agent(ScriptedEndpoint([calling("order", article="A7")] * 2 + [FINISH]), [order])
    running = agent.stream("x")
    started: list[ToolStarted] = []
    for event in running:
        if isinstance(event, ToolStarted):
            assert len(keys) == len(started)
            started.append(event)
    assert [key for key, *_ in keys] == [f"{running.run_id}:1", f"{running.run_id}:2"]
    assert keys[0][1:] == ("order", {"article": "A7"}, "I call it now.")
    assert [event.call_id for event in started] == [key for key, *_ in keys]
    assert (started[0].intent, started[0].effects, started[0].approved) == ("I call it now.", True, False)


def test_outside_a_call_there_is_none() -> None:
    with pytest.raises(UsageError, match="no tool call is under way"):
        current_call()


# --- threads and loops


def test_context_variables_reach_the_tool_and_do_not_come_back() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")

    @tool
    def look() -> str:
        found = variable.get()
        variable.set("from the tool")
        return found

    variable.set("from the caller")
    assert observed(look).content == "from the caller"
    assert variable.get() == "from the caller"


def test_calls_one_after_the_other_run_on_one_thread_that_is_not_the_callers() -> None:
    threads = []

    @tool
    def note() -> None:
        threads.append(threading.get_ident())

    box = Toolbox([note])
    for _ in range(20):
        box.execute(ToolCall("", "note", {}))
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


def test_a_hung_tool_does_not_hold_up_the_next_one(hung: Hang) -> None:
    assert not observed(hung.tool).ok
    assert observed(lambda_tool(lambda: "here"), timeout=5).content == "here"


def lambda_tool(function: Callable[[], object]) -> Tool:
    return tool(name="f")(function)


def test_a_forked_process_can_run_tools() -> None:
    assert observed(lambda_tool(lambda: 1)).ok  # a thread is idle now
    child = os.fork()
    if child == 0:  # pragma: no cover
        os._exit(0 if observed(lambda_tool(lambda: 1), timeout=5).ok else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_async_functions_run_on_a_loop_of_their_own() -> None:
    @tool
    async def later(a: int) -> int:
        """Double a number, later."""
        await asyncio.sleep(0)
        return 2 * a

    assert Toolbox([later]).execute(ToolCall("", "later", {"a": 4})).content == "8"

    async def main() -> str:  # also where a loop is running already
        agent = Agent(ScriptedEndpoint([calling("later", a=4), FINISH]), [later])
        run = await agent.arun("x")
        assert run.steps[0].observation is not None
        return run.steps[0].observation.content

    assert asyncio.run(main()) == "8"


def test_an_async_tool_that_takes_too_long_is_cancelled() -> None:
    cancelled = threading.Event()

    @tool(timeout=0.05)
    async def hang() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    assert observed(hang).content == "no result within 0.05 seconds"
    assert cancelled.wait(10)


def test_async_generators_and_awaitables_are_seen_through() -> None:
    @tool
    async def several() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    async def one() -> str:
        return "one"

    assert observed(several).content == "[0, 1, 2]"
    assert observed(lambda_tool(one)).content == "one"


def test_an_exception_in_an_async_tool_is_an_observation() -> None:
    @tool
    async def fail() -> None:
        raise ZeroDivisionError("division by zero")

    assert observed(fail).content == "ZeroDivisionError: division by zero"


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GeneratorExit(), SystemExit(1), Panic("at src")])
def test_what_a_tool_raises_that_is_no_exception_is_an_observation_too(error: BaseException) -> None:
    @tool
    def fail() -> str:
        """Fail in an unusual way."""
        raise error

    @tool
    async def fail_later() -> str:
        """Fail in an unusual way."""
        raise error

    assert observed(fail).content.startswith(type(error).__name__)
    endpoint = ScriptedEndpoint([calling("fail"), calling("fail_later"), MISSING])
    run = Agent(endpoint, [fail, fail_later]).run("x")
    assert run.status == "insufficient"
    assert [step.observation.ok for step in run.steps if step.observation] == [False, False]


def test_what_interrupts_the_waiting_passes_through(monkeypatch: pytest.MonkeyPatch, hung: Hang) -> None:
    def interrupted(done: object, waiting: object) -> None:
        raise SystemExit(3)  # as a signal handler may

    monkeypatch.setattr(execution, "_wait", interrupted)
    with pytest.raises(SystemExit):
        observed(hung.tool)


def test_an_endless_generator_that_is_slow_is_cut_off_too() -> None:
    @tool(timeout=0.1)
    def drip() -> Iterator[int]:
        while not current_call().abandoned.wait(0.02):
            yield 1

    assert observed(drip).content == "no result within 0.1 seconds"


# --- whatever tools give back


def endless() -> Iterator[int]:
    while True:
        yield 0


def nested() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "done (no result)"),
        (b"\xff\x00bytes", "\ufffd\x00bytes"),
        ({3, 1, 2}, "[1, 2, 3]"),
        ({1, "a"}, ""),
        (endless(), "[stopped after 1000 items]"),
        ("x" * 10_000_000, "x"),
        (float("nan"), "nan"),
        ({"a": [float("inf")]}, '{"a": ["inf"]}'),
        (nested(), "nested too deeply"),
        (object(), "object"),
        (ValueError("not raised"), "not raised"),
        ({1: {2: 3}}, '{"1": {"2": 3}}'),
    ],
)
def test_whatever_a_tool_returns_is_an_observation_and_the_run_goes_on(
    value: object, said: str, tmp_path: Path
) -> None:
    """langchain 10528."""

    @tool
    def give() -> object:
        """Give something back."""
        return value

    path = tmp_path / "run.jsonl"
    endpoint = ScriptedEndpoint([calling("give"), FINISH], n_ctx=4096)
    run = Agent(endpoint, [give], trace=path).run("x")
    assert run.status == "finished"
    observation = run.steps[0].observation
    assert observation is not None
    assert observation.ok
    assert said in observation.content
    ended = next(record for record in read_trace(path) if record["event"] == "ToolEnded")
    assert ended["observation"]["content"] == observation.content  # whole
    if isinstance(value, str):
        assert observation.content == value
        assert "of 10000000 characters left out" in endpoint.prompts[-1].text


def test_what_raises_while_it_is_turned_into_text_is_an_observation_too() -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            raise RuntimeError("broken")

    def failing() -> Iterator[int]:
        yield 1
        raise RuntimeError("half way")

    assert observed(lambda_tool(Broken)).content == "RuntimeError: broken"
    assert observed(lambda_tool(failing)).content == "RuntimeError: half way"


def test_more_than_is_kept_is_cut_with_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localreact.tools.results.MOST_CHARACTERS", 100)
    said = observed(lambda_tool(lambda: "y" * 130)).content
    assert said == "y" * 100 + " … [30 more characters were not kept]"


def test_ctrl_c_while_waiting_ends_the_run_as_cancelled_with_its_trace(
    hung: Hang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("localreact.tools.execution._wait", interrupted)
    path = tmp_path / "run.jsonl"
    run = Agent(ScriptedEndpoint([calling("hang"), FINISH]), [hung.tool], trace=path).run("x")
    assert run.status == "cancelled"
    records = read_trace(path)
    assert [record["event"] for record in records[-3:]] == ["ToolStarted", "ToolEnded", "RunEnded"]
    assert "outcome is unknown" in records[-2]["observation"]["content"]


def test_what_a_call_leaves_behind_is_freed_when_it_is_over() -> None:
    class Big:
        pass

    alive: list[int] = []

    @tool
    def make() -> str:
        alive.append(id(Big()))
        return "made"

    agent = Agent(ScriptedEndpoint([calling("make"), FINISH]), [make])
    assert any(isinstance(event, ToolEnded) for event in agent.stream("x"))
    gc.collect()
    assert alive
    assert not [each for each in gc.get_objects() if isinstance(each, Big)]

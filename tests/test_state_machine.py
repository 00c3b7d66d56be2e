"""Whatever a model, its tools and its endpoint do, a run ends in one named status and its counts are true."""

from __future__ import annotations

import threading
import typing
from collections import deque
from collections.abc import Iterator

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from localreact import Agent, ScriptedEndpoint, compaction, tool
from localreact.errors import EndpointError
from localreact.guards import Guards
from localreact.plans import LEAST_TURNS
from localreact.protocols import PROTOCOLS, protocol
from localreact.tools import current_call
from localreact.trace.events import (
    Compacted,
    Event,
    GuardActed,
    RunEnded,
    StepStarted,
    ToolEnded,
    ToolStarted,
    TurnCompleted,
    TurnRefused,
)
from localreact.types import Finish, Status, ToolCall, Usage

SKUS = st.sampled_from(["A7", "B2", "三体"])
TEXTS = st.sampled_from(
    ["3", "", "nothing found", "a page of some length about bridges " * 3, "没有", "x" * 3000]
)
LONG = 4 * 4096  # characters: more than any turn may have


class Runs(RuleBasedStateMachine):
    """One run, driven reply by reply. Every reply holds a mark of its own, by which it is found again."""

    @initialize(
        name=st.sampled_from(list(PROTOCOLS)),
        max_steps=st.integers(1, 12),
        max_tokens=st.sampled_from([60, 400, 2000, 100_000]),
        max_turn_tokens=st.sampled_from([None, 60, 300]),
        max_context=st.sampled_from([None, 400, 1000]),
        max_tool_errors=st.integers(1, 4),
        deadline=st.sampled_from([None, 100.0]),
        gate=st.booleans(),
        choice=st.sampled_from(["auto", "none", "required", "stock"]),
        guards=st.builds(Guards, st.integers(2, 3), st.integers(1, 4), st.integers(1, 6)),
        check=st.sampled_from(["", "good", "bad", "raises"]),
        planning=st.booleans(),
        summaries=st.booleans(),
    )
    def start(
        self,
        name: str,
        max_steps: int,
        max_tokens: int,
        max_turn_tokens: int | None,
        max_context: int | None,
        max_tool_errors: int,
        deadline: float | None,
        gate: bool,
        choice: str,
        guards: Guards,
        check: str,
        planning: bool,
        summaries: bool,
    ) -> None:
        self.write = protocol(name).write
        planning = planning and max_steps >= LEAST_TURNS and choice != "none" and name != "bracket"
        self.replies: deque[str | BaseException] = deque()
        self.results: deque[str | BaseException] = deque()
        self.executed = self.written = 0
        self.events: list[Event] = []
        self.illegal: list[tuple[str, int]] = []
        """Marks of texts that were no turn, and how many prompts came before them."""
        self.cancel = threading.Event()
        self.over = False
        self.finishes: list[str] = []

        @tool
        def stock(sku: str) -> str:
            """How many of an article are left."""
            self.executed += 1
            result = self.results.popleft()
            if isinstance(result, BaseException):
                raise result
            return result

        @tool(timeout=0.01, effects=True)
        def hang(reason: str) -> str:
            """Wait until nobody waits any longer."""
            current_call().abandoned.wait(10)
            return "late"

        def checked(run: object) -> bool:
            if check == "raises":
                raise ValueError("a broken check")
            return check == "good"

        self.max_steps, self.max_tokens = max_steps, max_tokens
        self.endpoint = ScriptedEndpoint(self._next_replies())
        agent = Agent(
            self.endpoint,
            [stock, hang],
            max_steps=max_steps,
            max_tokens=max_tokens,
            max_turn_tokens=max_turn_tokens,
            max_context=max_context,
            max_tool_errors=max_tool_errors,
            deadline=deadline,
            evidence_gate=gate,
            guards=guards,
            checks=[checked] if check else [],
            protocol=name,
            examples=0,
            strategy="plan" if planning else "react",
            summaries=summaries,
        )
        self.running = agent.stream("How many A7 are left?", self.cancel, tool_choice=choice)
        self._to_next_turn()

    def _next_replies(self) -> Iterator[str | BaseException]:
        while True:  # between two turns the model is only asked for a summary
            yield self.replies.popleft() if self.replies else self.write(Finish("I sum up.", answer="so far"))

    def _to_next_turn(self) -> None:
        """On to where the model is asked, or to the end."""
        for event in self.running:
            self.events.append(event)
            if isinstance(event, StepStarted):
                return
        self.over = True

    def _mark(self) -> str:
        self.written += 1
        return f"mark {self.written} of the script"

    def _reply(self, reply: str | BaseException, result: str | BaseException = "3") -> None:
        self.replies.append(reply)
        self.results.clear()
        self.results.append(result)
        self._to_next_turn()

    def _going(self) -> bool:
        return not self.over

    # --- what a model may do

    @precondition(_going)
    @rule(sku=SKUS, result=TEXTS)
    def call(self, sku: str, result: str) -> None:
        self._reply(self.write(ToolCall(self._mark(), "stock", {"sku": sku})), result)

    @precondition(_going)
    @rule(sku=SKUS, error=st.sampled_from([ZeroDivisionError(), OSError("gone"), SystemExit(3)]))
    def call_that_fails(self, sku: str, error: BaseException) -> None:
        self._reply(self.write(ToolCall(self._mark(), "stock", {"sku": sku})), error)

    @precondition(_going)
    @rule()
    def call_that_is_interrupted(self) -> None:
        self._reply(self.write(ToolCall(self._mark(), "stock", {"sku": "A7"})), KeyboardInterrupt())

    @precondition(_going)
    @rule()
    def call_that_hangs(self) -> None:
        self._reply(self.write(ToolCall(self._mark(), "hang", {"reason": "none"})))

    @precondition(_going)
    @rule(steps=st.lists(st.sampled_from(["look it up", "add", "x" * 200]), max_size=4))
    def plan(self, steps: list[str]) -> None:
        self._reply(self.write(ToolCall(self._mark(), "plan", {"steps": steps})))

    @precondition(_going)
    @rule(name=st.sampled_from(["Use stock", "stocks"]))
    def unknown_tool(self, name: str) -> None:
        self._reply(self.write(ToolCall(self._mark(), name, {"sku": "A7"})))

    @precondition(_going)
    @rule()
    def argument_at_its_bound(self) -> None:
        self._reply(self.write(ToolCall(self._mark(), "stock", {"sku": "s" * 1000})))

    @precondition(_going)
    @rule()
    def finish(self) -> None:
        answer = self._mark()
        self.finishes.append(answer)
        self._reply(self.write(Finish("I know it now.", answer=answer)))

    @precondition(_going)
    @rule()
    def insufficient(self) -> None:
        self._reply(self.write(Finish("I can't know it.", missing=self._mark())))

    @precondition(_going)
    @rule(shape=st.sampled_from(["{}", "", '{{"thought": "{}"}}', "Action: stock {}", "<|im_end|>{}"]))
    def no_turn(self, shape: str) -> None:
        mark = self._mark()
        self.illegal.append((mark, len(self.endpoint.prompts)))
        self._reply(shape.format(mark))

    @precondition(_going)
    @rule()
    def too_long(self) -> None:
        mark = self._mark()
        self.illegal.append((mark, len(self.endpoint.prompts)))
        self._reply(self.write(ToolCall(mark * (LONG // len(mark)), "stock", {"sku": "A7"}))[:-1])

    @precondition(_going)
    @rule()
    def endpoint_fails(self) -> None:
        self._reply(EndpointError("connection refused"))

    @precondition(_going)
    @rule(seconds=st.sampled_from([1.0, 99.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.running._state.started -= seconds

    @precondition(_going)
    @rule()
    def cancelled(self) -> None:
        self.cancel.set()

    @precondition(lambda self: self.over)
    @rule()
    def nothing_comes_after_the_end(self) -> None:
        assert next(self.running, None) is None

    # --- what always holds

    @invariant()
    def nothing_illegal_is_in_a_later_prompt(self) -> None:
        for mark, before in self.illegal:
            assert all(mark not in prompt.text for prompt in self.endpoint.prompts[before + 1 :])

    @invariant()
    def prompts_fit(self) -> None:
        prompts = [prompt for prompt in self.endpoint.prompts if compaction.ASK not in prompt.text]
        for step, prompt in zip(self._of(StepStarted), prompts, strict=False):
            assert self.endpoint.count(prompt) + step.max_tokens <= self.endpoint.n_ctx
            assert "How many A7 are left?" in prompt.text

    @invariant()
    def no_call_is_executed_twice(self) -> None:
        started, ended = self._of(ToolStarted), self._of(ToolEnded)
        assert self.executed == len([each for each in started if each.tool == "stock"])
        assert len(started) == len({each.call_id for each in started})
        assert all(
            each.observation.unknown
            for each in ended
            if each.observation.tool == "hang" and each.observation.executed
        )
        assert "late" not in {each.observation.content for each in ended}
        assert len({each.call_id for each in ended}) == len(ended)
        assert {each.call_id for each in started} == {e.call_id for e in ended if e.observation.executed}

    @invariant()
    def counts_are_true(self) -> None:
        state = self.running._state
        completions = [each.completion for each in self._of(TurnCompleted)]
        summaries = [each.summary for each in self._of(Compacted) if each.summary]
        assert len(completions) == len(state.steps) <= self.max_steps
        assert state.usage == sum((each.usage for each in completions + summaries), Usage())
        assert state.usage.generated <= self.max_tokens
        assert len(self._of(TurnRefused)) == sum(step.problem is not None for step in state.steps)
        refused = [each for each in self._of(GuardActed) if each.action == "refused"]
        assert len(refused) == sum(not each.executed for each in state.observations)
        assert len([each for each in self._of(GuardActed) if each.action == "closed"]) <= 1

    @invariant()
    def the_end_is_named(self) -> None:
        if not self.over:
            return
        assert [type(event) for event in self.events].count(RunEnded) == 1
        run = self.running.outcome
        assert isinstance(self.events[-1], RunEnded)
        assert run.status in typing.get_args(Status)
        assert (run.answer is not None) == (run.status in ("finished", "partial"))
        assert run.answer is None or run.answer == self.finishes[-1]
        assert (run.missing is not None) == (run.status == "insufficient")
        assert run.usage == self.running._state.usage
        assert len(run.steps) == len(self.running._state.steps)
        assert run.reason or run.status in ("finished", "insufficient")

    def _of(self, kind: type[typing.Any]) -> list[typing.Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def teardown(self) -> None:
        if not hasattr(self, "running"):
            return
        if not self.over:
            self.running.close()


Runs.TestCase.settings = settings(max_examples=60, stateful_step_count=14, deadline=None)
TestRuns = Runs.TestCase

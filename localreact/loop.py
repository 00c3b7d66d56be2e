"""The loop: read, evaluate, act, until the run has ended. One screen, then the three steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from localreact import checks, compaction, context, guards, paging, plans, policy
from localreact.budgets import SHORTEST_TURN, Budgets
from localreact.endpoints.base import Endpoint, whole
from localreact.errors import ContextOverflowError, EndpointError, GrammarError, ProtocolError
from localreact.policy import Plan, Policy
from localreact.protocols import Protocol
from localreact.protocols.base import first_grammar, mark_truncated, read_first
from localreact.run import Ending, Events, RunState
from localreact.tools import Toolbox
from localreact.tools.execution import Call, Outer
from localreact.tools.permission import Permission
from localreact.trace.events import (
    GuardActed,
    Planned,
    SpanWritten,
    StepStarted,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnCompleted,
    TurnRead,
    TurnRefused,
)
from localreact.types import (
    Completion,
    Finish,
    Limits,
    Observation,
    Sampling,
    ToolCall,
    Turn,
    TurnGrammar,
    TurnSpec,
    Usage,
)
from localreact.window import Window


def concluded(
    state: RunState, budgets: Budgets, rules: Policy, plan: Plan, turn: Finish, usage: Usage
) -> tuple[Ending, str]:
    """The ending that a legal finish is, and what a check says against it. Where nothing is left to better
    the answer with, it is partial instead; that something is missing can always be said."""
    ending = policy.ending_of(turn, plan, rules)
    if ending.answer is None:
        return ending, ""
    problem = checks.unmet(rules.checks, state.outcome(state.ended(ending)))
    if problem and not policy.is_rechecked(state, budgets, plan, usage):
        return replace(ending, status="partial", reason=problem), ""
    return ending, problem


NO_GRAMMAR = "no grammar for the next turn"
"""So begins the reason of a run that ended since its turn couldn't be held: no fault of an endpoint."""


def to_the_end(running: Events[Ending]) -> Events[Ending]:
    """What a loop comes to, errors too."""
    try:
        return (yield from running)
    except ContextOverflowError as error:
        return Ending("context_overflow", str(error))
    except EndpointError as error:
        return Ending("endpoint_error", str(error))
    except GrammarError as error:  # nothing goes on unconstrained
        return Ending("endpoint_error", f"{NO_GRAMMAR}: {error}")
    except KeyboardInterrupt:
        return Ending("cancelled", "interrupted")


@dataclass(frozen=True)
class Loop:
    endpoint: Endpoint
    protocol: Protocol
    toolbox: Toolbox
    policy: Policy
    budgets: Budgets
    sampling: Sampling
    permission: Permission
    summaries: bool = False
    """Whether the model sums older steps up where the context is full."""

    refused: tuple[str, ...] = ()
    """Languages that the endpoint enforces, but can't have these turns in."""

    def run(self, state: RunState, transcript: context.Transcript, cancel: threading.Event) -> Events[Ending]:
        window = self._window(cancel)
        while True:
            if cancel.is_set():
                return Ending("cancelled", "stopped between two turns")
            state.late = state.late or policy.is_late(state, self.budgets)
            yield from window.make_room(state, transcript, SHORTEST_TURN)
            plan = policy.next_turn(state, self.budgets, self.policy, window.room(transcript))
            if isinstance(plan, Ending):
                return plan
            if plan.reason:
                yield GuardActed(len(state.steps) + 1, str(plan.closing), "closed", plan.reason)
            completion = yield from self._evaluate(state, transcript, plan, cancel)
            if completion.stop in ("deadline", "cancelled"):
                state.add(completion)
                return Ending(completion.stop, "stopped in the middle of a turn")
            read = yield from self._read(state, transcript, plan, completion)
            if read is None:
                continue
            turn, completion = read
            problem, guard = policy.objection(turn, plan, self.policy), "turn"
            if isinstance(turn, Finish) and not problem:
                ending, problem = concluded(state, self.budgets, self.policy, plan, turn, completion.usage)
                guard = "check"
                if not problem:
                    state.add(completion, turn, closing=plan.closing)
                    return ending
            if policy.is_plan(turn, self.policy) and not problem:
                yield from self._take_plan(state, transcript, completion, turn)
                continue
            if state.interrupted and isinstance(turn, ToolCall) and not plan.closing:
                problem = problem or policy.INTERRUPTED
            yield from self._act(state, transcript, plan, completion, turn, problem, guard, cancel)

    def _evaluate(
        self, state: RunState, transcript: context.Transcript, plan: Plan, cancel: threading.Event
    ) -> Events[Completion]:
        """Let the model write one turn, within what the context and the budgets leave."""
        step, spec = len(state.steps) + 1, plan.spec
        yield StepStarted(
            step=step,
            prompt=transcript.take_new(),
            tools=tuple(dict.fromkeys(tool.name for tool in spec.tools)),
            answer=spec.answer,
            insufficient=spec.insufficient,
            max_tokens=plan.max_tokens,
            closing=plan.closing or "",
            sources=tuple(source.step for source in spec.sources),
            reasoning=spec.reasoning,
        )
        deadline = self.deadline(state)
        writing = self.endpoint.complete(
            transcript.prompt,
            self.grammar(spec),
            Limits(plan.max_tokens, deadline, cancel, self.protocol.stops, spec.reasoning),
            self.sampling,
            turn=step,
        )
        reader = self.protocol.reader()
        pace: list[tuple[int, int, float]] = []
        with closing(writing):
            while True:
                started = time.perf_counter()
                try:
                    span = next(writing)
                except StopIteration as finished:
                    completion: Completion = finished.value
                    yield TurnCompleted(step, completion, tuple(pace))
                    return completion
                took = round(time.perf_counter() - started, 5)
                pace.append((len(span.text), len(span.tokens), took))
                yield SpanWritten(step, span, took)
                if span.reasoning:
                    if span.author == "sampled":
                        yield TextDelta(step, "reasoning", span.text)
                    continue
                for field, text in reader.feed(span.text):
                    if field != "answer" or spec.answer_schema is None:  # a value is shown when it is whole
                        yield TextDelta(step, field, text)

    def _read(
        self, state: RunState, transcript: context.Transcript, plan: Plan, completion: Completion
    ) -> Events[tuple[Turn, Completion] | None]:
        """The turn that a text is, and what of the completion is the turn's own.

        Where no grammar ends a turn, the model may go on: only the first turn is read. What comes after
        it, or is no turn at all, goes into no later prompt.
        """
        step = len(state.steps) + 1
        turn, problem = None, ""
        try:
            structured = plan.spec.answer_schema is not None
            turn, completion = self._first_turn(completion, structured)
        except ProtocolError as error:
            problem = error.message
        if completion.stop == "length" and not (turn and turn.extra):
            yield TurnRefused(step, "the tokens ran out inside the turn")
            state.add(completion, problem="length", closing=plan.closing)
            transcript.user(self.protocol.error("your reply was cut off; be brief"))
            return None
        if turn is None:
            yield TurnRefused(step, problem)
            state.add(completion, problem="refused", closing=plan.closing)
            transcript.user(self.protocol.error(f"your reply was no turn: {problem}"))
            return None
        turn = mark_truncated(turn, plan.spec)
        yield TurnRead(step, turn)
        return turn, completion

    def _first_turn(self, completion: Completion, structured: bool) -> tuple[Turn, Completion]:
        """
        Raises:
            ProtocolError: the text is no turn, or (where no grammar is) doesn't begin with one.
        """
        if completion.reasoning and not completion.text.strip():
            raise ProtocolError("it holds reasoning, and no turn after it")
        tools = (*self.toolbox.specs, paging.ANY, plans.ANY)
        if self.endpoint.languages:
            return self.protocol.parse(completion.text, tools, structured), completion
        turn, own = read_first(self.protocol, completion.text, tools, structured)
        # The ids include what came after, so the next prompt gets the text.
        return turn, replace(completion, text=own, tokens=()) if turn.extra else completion

    def _take_plan(
        self, state: RunState, transcript: context.Transcript, completion: Completion, turn: Turn
    ) -> Events[None]:
        """Tell the model which step of its plan it is to work on."""
        state.add(completion, turn)
        steps, _ = plans.current(state.steps) or ((), ())
        transcript.model(completion.text, completion.tokens)
        transcript.user(self.protocol.observation(Observation(plans.PLAN, plans.told(steps))))
        yield Planned(len(state.steps), steps)

    def _act(
        self,
        state: RunState,
        transcript: context.Transcript,
        plan: Plan,
        completion: Completion,
        turn: Turn,
        problem: str,
        guard: str,
        cancel: threading.Event,
    ) -> Events[None]:
        """Execute a call, at most once, and put the observation where the model reads on. A `problem` is
        an observation in its place; `guard` says which rule found it."""
        step = len(state.steps) + 1
        call_id, observation, seconds = f"{state.run_id}:{step}", None, 0.0
        if isinstance(turn, ToolCall) and not problem:
            observation, seconds, interrupted = yield from self.make_call(
                state, turn, completion.usage, cancel
            )
            if interrupted:
                state.add(completion, turn, observation)
                yield ToolEnded(step, call_id, observation, seconds)
                raise KeyboardInterrupt
        if observation is None:
            name = turn.tool if isinstance(turn, ToolCall) else "finish"
            observation = Observation(name, problem, ok=False, executed=False)
        unmet = guard == "check"
        try:
            acts = guards.acts_on(state.steps, turn, observation, self.policy.guards)
            observation = replace(observation, note=guards.note(acts))
            transcript.model(completion.text, completion.tokens)
            window = self._window(cancel)
            yield from window.make_room(state, transcript, 2 * SHORTEST_TURN, observation)
            cited_as = step if self.policy.cite and observation.ok else None
            shown = window.fit(transcript, observation, step, cited_as, more=paging.MORE not in self.toolbox)
        except BaseException as error:  # what was done is told, whatever keeps the model from reading it
            state.add(completion, turn, observation, closing=plan.closing, unmet=unmet)
            ended = ToolEnded(step, call_id, observation, seconds)
            if isinstance(error, GeneratorExit):
                state.untold = ended
            else:
                yield ended
            raise
        observation = replace(observation, excerpt=shown.excerpt)
        transcript.user(self.protocol.observation(shown, cited_as))
        clipped = shown.content if shown.content != observation.content else None
        state.add(completion, turn, observation, shown=clipped, closing=plan.closing, unmet=unmet)
        yield ToolEnded(step, call_id, observation, seconds, clipped)
        if not observation.executed:
            yield GuardActed(step, guard, "refused", observation.content)
        for act in acts:
            yield GuardActed(act.step, act.guard, act.action, act.detail)

    def make_call(
        self, state: RunState, turn: ToolCall, usage: Usage, cancel: threading.Event
    ) -> Events[tuple[Observation, float, bool]]:
        """What comes of a call, in how many seconds, and whether Ctrl-C cut it off. `usage` is its turn's."""
        step = len(state.steps) + 1
        outer = self._outer(state, usage)
        call = Call(turn.tool, turn.arguments, state.run_id, step, turn.thought, outer=outer)
        if problem := self._refusal(state, turn, call, cancel):
            return Observation(turn.tool, problem, ok=False, executed=False), 0.0, False
        if turn.tool not in self.toolbox:
            return paging.next_page(state, turn), 0.0, False
        tool = self.toolbox[turn.tool]
        asked = self.permission.asks(tool)
        yield ToolStarted(step, call.key, tool.name, turn.arguments, turn.thought, tool.effects, asked)
        started, interrupted = time.monotonic(), False
        try:
            observation = self.toolbox.execute(turn, call, self.deadline(state), cancel)
        except KeyboardInterrupt:
            interrupted, said = True, "interrupted; the outcome is unknown"
            observation = Observation(tool.name, said, ok=False, unknown=tool.effects, inner=outer.inner)
        return observation, time.monotonic() - started, interrupted

    def _refusal(self, state: RunState, turn: ToolCall, call: Call, cancel: threading.Event) -> str:
        """Why a call isn't made although the turn is legal: empty where it is. May ask people, and wait."""
        if turn.tool not in self.toolbox and turn.tool == paging.MORE:
            return ""
        if problem := self.toolbox.refusal(turn):
            return problem
        problem = self.permission.refusal(call, self.toolbox[turn.tool], self.spent(state))
        if cancel.is_set():  # while somebody was asked
            return "not executed: the run was cancelled"
        if not problem and (deadline := self.deadline(state)) and time.monotonic() >= deadline:
            return "not executed: the time is up"
        return policy.INTERRUPTED if state.interrupted else problem

    def spent(self, state: RunState) -> float:
        """What the calls of a run cost so far, those too of other agents' runs that it called."""
        return sum(
            self.toolbox[each.tool].cost + sum(run.cost for run in each.inner)
            for each in state.observations
            if each.executed and each.tool in self.toolbox
        )

    def _outer(self, state: RunState, now: Usage) -> Outer:
        """What a run that a call makes may use of this one's; `now` is what this turn took."""
        left = self.budgets.max_tokens - state.generated - now.generated - self.budgets.kept_for_last_turn
        return Outer(
            max(0, left),
            self.deadline(state),
            None if self.permission.max_cost is None else self.permission.max_cost - self.spent(state),
            None if state.trace is None else state.trace.parent,
            lambda: state.interrupted,
        )

    def deadline(self, state: RunState) -> float | None:
        return None if self.budgets.deadline_s is None else state.started + self.budgets.deadline_s

    def grammar(self, spec: TurnSpec) -> TurnGrammar | None:
        """The turn in the first language that the endpoint enforces and the protocol can be written in;
        None only where the endpoint enforces none.

        Raises:
            GrammarError: the turn can't be written in any of them.
        """
        return first_grammar(self.protocol, spec, self.languages)

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(each for each in self.endpoint.languages if each not in self.refused)

    def _window(self, cancel: threading.Event) -> Window:
        ask: Callable[[RunState, context.Transcript], Completion | None] | None = None
        if self.summaries:

            def ask(state: RunState, transcript: context.Transcript) -> Completion | None:
                return self._summary(state, transcript, cancel)

        return Window(self.endpoint, self.protocol, self.budgets, ask)

    def _summary(
        self, state: RunState, transcript: context.Transcript, cancel: threading.Event
    ) -> Completion | None:
        """What the model says of the steps so far, where there is room to say it."""
        window = Window(self.endpoint, self.protocol, self.budgets)
        asked, size = compaction.question(transcript), window.room(transcript).size
        tokens = self.budgets.max_tokens - state.generated - self.budgets.kept_for_last_turn
        tokens = min(tokens, size - self.endpoint.count(asked))
        if tokens < SHORTEST_TURN:
            return None
        return whole(
            self.endpoint.complete(
                asked,
                self.grammar(policy.within(compaction.turn(size), tokens)),
                Limits(tokens, self.deadline(state), cancel, self.protocol.stops),
                self.sampling,
                turn=len(state.steps) + 1,
            )
        )

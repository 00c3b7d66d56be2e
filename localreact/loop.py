"""The loop: read, evaluate, act, until the run has ended. One screen, then the three steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeVar

from localreact import checks, compaction, context, guards, paging, policy
from localreact.budgets import SHORTEST_TURN, Budgets
from localreact.endpoints.base import Endpoint
from localreact.errors import ContextOverflowError, EndpointError, GrammarError, ProtocolError
from localreact.policy import Plan, Policy, Room
from localreact.protocols import Protocol
from localreact.protocols.base import mark_truncated, read_first
from localreact.run import Ending, RunState
from localreact.tools import Toolbox
from localreact.tools.execution import Call
from localreact.tools.permission import Permission
from localreact.trace.events import (
    Compacted,
    Event,
    GuardActed,
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
    Prompt,
    Sampling,
    Segment,
    ToolCall,
    Turn,
    TurnGrammar,
    TurnSpec,
    Usage,
)

T = TypeVar("T")
Events = Generator[Event, None, T]
"""Yields events as they happen, then returns a result."""


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


def to_the_end(running: Events[Ending]) -> Events[Ending]:
    """What a loop comes to, errors too."""
    try:
        return (yield from running)
    except ContextOverflowError as error:
        return Ending("context_overflow", str(error))
    except (EndpointError, GrammarError) as error:
        return Ending("endpoint_error", str(error))
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

    def run(self, state: RunState, transcript: context.Transcript, cancel: threading.Event) -> Events[Ending]:
        while True:
            if cancel.is_set():
                return Ending("cancelled", "stopped between two turns")
            state.late = state.late or policy.is_late(state, self.budgets)
            yield from self._make_room(state, transcript, SHORTEST_TURN)
            plan = policy.next_turn(state, self.budgets, self.policy, self._room(transcript))
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
        deadline = self._deadline(state)
        writing = self.endpoint.complete(
            transcript.prompt,
            self.grammar(spec),
            Limits(plan.max_tokens, deadline, cancel, self.protocol.stops, spec.reasoning),
            self.sampling,
            turn=step,
        )
        reader = self.protocol.reader()
        with closing(writing):
            while True:
                try:
                    span = next(writing)
                except StopIteration as finished:
                    completion: Completion = finished.value
                    yield TurnCompleted(step, completion)
                    return completion
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
        tools = (*self.toolbox.specs, paging.ANY)
        if self.endpoint.languages:
            return self.protocol.parse(completion.text, tools, structured), completion
        turn, own = read_first(self.protocol, completion.text, tools, structured)
        # The ids include what came after, so the next prompt gets the text.
        return turn, replace(completion, text=own, tokens=()) if turn.extra else completion

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
        started = time.monotonic()
        name = turn.tool if isinstance(turn, ToolCall) else "finish"
        call = Call(
            name, turn.arguments if isinstance(turn, ToolCall) else {}, state.run_id, step, turn.thought
        )
        if isinstance(turn, ToolCall):
            problem = problem or self._refusal(state, turn, call, cancel)
        if problem or not isinstance(turn, ToolCall):
            observation = Observation(name, problem, ok=False, executed=False)
        elif name not in self.toolbox:
            observation = paging.next_page(state, turn)
        else:
            tool = self.toolbox[name]
            asked = self.permission.asks(tool)
            yield ToolStarted(step, call.key, name, turn.arguments, turn.thought, tool.effects, asked)
            started = time.monotonic()
            try:
                observation = self.toolbox.execute(turn, call, self._deadline(state), cancel)
            except KeyboardInterrupt:
                said = "interrupted; the outcome is unknown"
                observation = Observation(name, said, ok=False, unknown=tool.effects)
                state.add(completion, turn, observation)
                yield ToolEnded(step, call.key, observation, time.monotonic() - started)
                raise
        acts = guards.acts_on(state.steps, turn, observation, self.policy.guards)
        observation = replace(observation, note=guards.note(acts))
        transcript.model(completion.text, completion.tokens)
        yield from self._make_room(state, transcript, 2 * SHORTEST_TURN, observation)
        cited_as = step if self.policy.cite and observation.ok else None
        shown = self._fit(transcript, observation, step, cited_as)
        observation = replace(observation, excerpt=shown.excerpt)
        transcript.user(self.protocol.observation(shown, cited_as))
        clipped = shown.content if shown.content != observation.content else None
        unmet = guard == "check"
        state.add(completion, turn, observation, shown=clipped, closing=plan.closing, unmet=unmet)
        yield ToolEnded(step, call.key, observation, time.monotonic() - started, clipped)
        if not observation.executed:
            yield GuardActed(step, guard, "refused", observation.content)
        for act in acts:
            yield GuardActed(act.step, act.guard, act.action, act.detail)

    def _refusal(self, state: RunState, turn: ToolCall, call: Call, cancel: threading.Event) -> str:
        """Why a call isn't made although the turn is legal: empty where it is. May ask people, and wait."""
        if turn.tool not in self.toolbox and turn.tool == paging.MORE:
            return ""
        if problem := self.toolbox.refusal(turn):
            return problem
        spent = sum(
            self.toolbox[each.tool].cost
            for each in state.observations
            if each.executed and each.tool in self.toolbox
        )
        problem = self.permission.refusal(call, self.toolbox[turn.tool], spent)
        if cancel.is_set():  # while somebody was asked
            return "not executed: the run was cancelled"
        if not problem and (deadline := self._deadline(state)) and time.monotonic() >= deadline:
            return "not executed: the time is up"
        return policy.INTERRUPTED if state.interrupted else problem

    def _deadline(self, state: RunState) -> float | None:
        return None if self.budgets.deadline_s is None else state.started + self.budgets.deadline_s

    def grammar(self, spec: TurnSpec) -> TurnGrammar | None:
        """The turn in the first language that the endpoint enforces and the protocol can be written in;
        None only where the endpoint enforces none.

        Raises:
            GrammarError: the turn can't be written in any of them.
        """
        failure: GrammarError | None = None
        for language in self.endpoint.languages:
            try:
                return self.protocol.grammar(spec, language)
            except GrammarError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return None

    def _make_room(
        self,
        state: RunState,
        transcript: context.Transcript,
        wanted: int,
        observation: Observation | None = None,
    ) -> Events[None]:
        """Put older steps in short until `wanted` tokens are left besides the last turn's, and for the
        observation what it needs, or a quarter of the context."""
        room = before = self._room(transcript)
        wanted += room.kept_for_last_turn(self.budgets)
        if observation is not None:
            wanted += min(self._tokens_of(observation), room.size // 4)
        kept: int | None = None
        for keep in range(self.budgets.keep_steps, -1, -1):
            told = len(state.steps) - keep
            if state.recorded is not None:
                left_out, told = state.recorded
                digest = compaction.digest(state.steps, left_out, told, room.size)
            elif room.left < wanted and told > state.digest.told:
                digest = compaction.longer(state.digest, state.steps, told, room.size, self._count)
            else:
                continue
            if told > state.digest.told:
                state.digest = digest
                at = transcript.compact(compaction.segments(digest), len(state.steps) - told)
                kept = at if kept is None else min(kept, at)
                room = self._room(transcript)
        if kept is not None:
            told, left_out = state.digest.told, state.digest.left_out
            yield Compacted(len(state.steps) + 1, kept, told, left_out, before.needed, room.needed)

    def _count(self, text: str) -> int:
        return self.endpoint.count(Prompt((Segment(text),)))

    def _tokens_of(self, observation: Observation, cited_as: int | None = None) -> int:
        return self.endpoint.count(Prompt(tuple(self.protocol.observation(observation, cited_as))))

    def _room(self, transcript: context.Transcript) -> Room:
        needed, size = self.endpoint.count(transcript.prompt), self.endpoint.n_ctx
        return Room(needed, min(size, self.budgets.max_context or size))

    def _fit(
        self, transcript: context.Transcript, observation: Observation, step: int, cited_as: int | None
    ) -> Observation:
        """The observation, cut so that a last turn still fits into the context after it."""

        def shown(content: str) -> Observation:
            return replace(observation, content=content)

        def count(content: str) -> int:
            return self._tokens_of(shown(content), cited_as)

        room = self._room(transcript)
        left = room.left - room.kept_for_last_turn(self.budgets) - 2 * SHORTEST_TURN
        more = paging.MORE not in self.toolbox
        content, excerpt = paging.fit(observation, step, left, count, more)
        return replace(observation, content=content, excerpt=excerpt)

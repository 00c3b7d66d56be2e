"""The agent: read, evaluate, act, until the run has ended."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from localreact import context, policy
from localreact._version import __version__
from localreact.budgets import SHORTEST_TURN, Budgets
from localreact.decoding import samplers
from localreact.endpoints.base import Endpoint
from localreact.endpoints.resolve import DEFAULT_MODEL, open_endpoint
from localreact.errors import ContextOverflowError, EndpointError, GrammarError, ProtocolError, TraceError
from localreact.examples import examples_for
from localreact.policy import Plan
from localreact.protocols import Protocol
from localreact.protocols import protocol as named_protocol
from localreact.protocols.base import mark_truncated
from localreact.run import Ending, Run, Running, RunState
from localreact.tools import Tool, Toolbox
from localreact.trace.events import (
    Event,
    RunStarted,
    StepStarted,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnCompleted,
    TurnRead,
    TurnRefused,
)
from localreact.trace.jsonl import TraceWriter
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
)


def _forget(event: Event) -> None:
    """Where a run leaves no trace."""


T = TypeVar("T")
_Events = Generator[Event, None, T]
"""Yields events as they happen, then returns a result."""


class Agent:
    """Answers questions with tools, every turn held to its grammar.

        agent = Agent(tools=[calculator])
        print(agent.run("What is 3*45+2*12?").answer)

    Args:
        model: a model card's name (`smollm2`), the path of a GGUF file, or an endpoint.
        tools: functions with type hints, or what `@tool` made of them.
        max_steps, max_tokens, deadline: budgets of a run; tokens are those generated, the
            deadline is in seconds. A run that reaches one is asked for its answer first.
        sampling: how tokens are chosen; greedy by default.
        evidence_gate: no answer before a tool has given a result (where there are tools).
        protocol, spelling, examples: the format of turns (`json`, `text`, `bracket` or `call`), how
            it is written, and worked examples of each tool in the prompt; by default as the model card says.
        trace: a file (for one run), or a folder that gets a file per run.

    Raises:
        MissingPartError, ModelError: the model can't be had.
        ToolDefinitionError: a tool can't be offered.
        GrammarError: a tool's schema can't be enforced.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Endpoint = DEFAULT_MODEL,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        max_steps: int = 8,
        max_tokens: int = 4096,
        deadline: float | None = None,
        sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
        evidence_gate: bool = True,
        protocol: str | None = None,
        spelling: Mapping[str, Any] | None = None,
        examples: int | None = None,
        trace: str | os.PathLike[str] | None = None,
        n_ctx: int | None = None,
    ) -> None:
        samplers.check(sampling)
        self.budgets = Budgets(max_steps, max_tokens, deadline)
        self.toolbox = Toolbox(tools)
        self.sampling = sampling
        self.evidence_gate = evidence_gate
        self.trace = None if trace is None else Path(trace)
        self._owned = ExitStack()
        if isinstance(model, str | os.PathLike):
            self.endpoint = open_endpoint(model, n_ctx)
            self._owned.callback(self.endpoint.close)
        else:
            self.endpoint = model
        card = self.endpoint.card
        self.protocol = self._protocol(protocol, spelling)
        specs = self.toolbox.specs
        self._opening = context.opening(
            self.endpoint.chat,
            self.protocol,
            self.protocol.instructions(specs),
            examples_for(specs, card.examples if examples is None else examples),
        )
        self._check_tools()

    # --- the loop

    def _loop(
        self, state: RunState, transcript: context.Transcript, cancel: threading.Event
    ) -> _Events[Ending]:
        while True:
            if cancel.is_set():
                return Ending("cancelled", "stopped between two turns")
            plan = policy.next_turn(state, self.budgets, self.toolbox.specs, self.evidence_gate)
            if isinstance(plan, Ending):
                return plan
            completion = yield from self._evaluate(state, transcript, plan, cancel)
            if completion.stop in ("deadline", "cancelled"):
                state.add(completion)
                return Ending(completion.stop, "stopped in the middle of a turn")
            turn = yield from self._read(state, transcript, plan, completion)
            if turn is None:
                continue
            problem = policy.objection(turn, plan)
            if isinstance(turn, Finish) and not problem:
                state.add(completion, turn)
                return policy.ending_of(turn, plan)
            yield from self._act(state, transcript, completion, turn, problem)

    def _evaluate(
        self, state: RunState, transcript: context.Transcript, plan: Plan, cancel: threading.Event
    ) -> _Events[Completion]:
        """Let the model write one turn, within what the context and the budgets leave."""
        step, spec = len(state.steps) + 1, plan.spec
        yield StepStarted(
            step=step,
            prompt=transcript.take_new(),
            tools=tuple(tool.name for tool in spec.tools),
            answer=spec.answer,
            insufficient=spec.insufficient,
            max_tokens=plan.max_tokens,
            closing=plan.closing or "",
        )
        needed = self.endpoint.count(transcript.prompt)
        if needed + SHORTEST_TURN > self.endpoint.n_ctx:
            raise ContextOverflowError(
                f"the prompt needs {needed} tokens and a turn {SHORTEST_TURN} more; "
                f"the context holds {self.endpoint.n_ctx}",
                "Ask for a larger context (--ctx), or for fewer tools.",
            )
        deadline = None if self.budgets.deadline_s is None else state.started + self.budgets.deadline_s
        writing = self.endpoint.complete(
            transcript.prompt,
            self._grammar(spec),
            Limits(min(plan.max_tokens, self.endpoint.n_ctx - needed), deadline, cancel),
            self.sampling,
            turn=step,
        )
        reader = self.protocol.reader()
        while True:
            try:
                span = next(writing)
            except StopIteration as finished:
                completion: Completion = finished.value
                yield TurnCompleted(step, completion)
                return completion
            for field, text in reader.feed(span.text):
                yield TextDelta(step, field, text)

    def _read(
        self, state: RunState, transcript: context.Transcript, plan: Plan, completion: Completion
    ) -> _Events[Turn | None]:
        """The turn that a text is. A text that is none goes into no later prompt."""
        step = len(state.steps) + 1
        if completion.stop == "length":
            yield TurnRefused(step, "the tokens ran out inside the turn")
            state.add(completion, problem="length")
            transcript.user(self.protocol.error("your reply was cut off; be brief"))
            return None
        try:
            turn = mark_truncated(self.protocol.parse(completion.text, self.toolbox.specs), plan.spec)
        except ProtocolError as error:
            yield TurnRefused(step, error.message)
            state.add(completion, problem="refused")
            transcript.user(self.protocol.error(f"your reply was no turn: {error.message}"))
            return None
        yield TurnRead(step, turn)
        return turn

    def _act(
        self,
        state: RunState,
        transcript: context.Transcript,
        completion: Completion,
        turn: Turn,
        problem: str,
    ) -> _Events[None]:
        """Execute a call, at most once, and put the observation where the model reads on."""
        step = len(state.steps) + 1
        call_id, started = f"{state.run_id}:{step}", time.monotonic()
        if problem or not isinstance(turn, ToolCall):
            name = turn.tool if isinstance(turn, ToolCall) else "finish"
            observation = Observation(name, problem, ok=False, executed=False)
        else:
            yield ToolStarted(step, call_id, turn.tool, turn.arguments)
            started = time.monotonic()
            observation = self.toolbox.execute(turn)
        transcript.model(completion.text, completion.tokens)
        shown = self._fit(transcript, observation)
        transcript.user(self.protocol.observation(shown))
        state.add(completion, turn, observation)
        clipped = shown.content if shown.content != observation.content else None
        yield ToolEnded(step, call_id, observation, time.monotonic() - started, clipped)

    # --- running it

    def run(self, question: str, cancel: threading.Event | None = None) -> Run:
        """Work on a question until the run has ended; how it ended is in the result's `status`.

        `cancel` stops the run from another thread. Ctrl-C ends it as `cancelled` too.

        Raises:
            TraceError: the trace can't be written.
        """
        running = self.stream(question, cancel)
        for _ in running:
            pass
        return running.outcome

    def stream(self, question: str, cancel: threading.Event | None = None) -> Running:
        """The events of a run as they happen; the last is RunEnded. Closing it cancels the run."""
        state = RunState(question)
        trace = self._trace_path(state)
        return Running(state, self._stream(state, trace, cancel), trace)

    async def arun(self, question: str) -> Run:
        """`run` without blocking the event loop. Cancelling the task cancels the run."""
        cancel = threading.Event()
        try:
            return await asyncio.to_thread(self.run, question, cancel)
        except asyncio.CancelledError:
            cancel.set()
            raise

    async def astream(self, question: str) -> AsyncIterator[Event]:
        """`stream` without blocking the event loop. Closing the iterator cancels the run."""
        cancel = threading.Event()
        events: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()

        def work() -> None:
            try:
                for event in self.stream(question, cancel):
                    events.put(event)
                events.put(None)
            except BaseException as error:
                events.put(error)

        worker = threading.Thread(target=work, name="localreact run", daemon=True)
        worker.start()
        try:
            while (event := await asyncio.to_thread(events.get)) is not None:
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            cancel.set()

    def _stream(
        self, state: RunState, trace: Path | None, cancel: threading.Event | None
    ) -> Generator[Event, None, None]:
        with ExitStack() as stack:
            record = stack.enter_context(TraceWriter(trace)).write if trace else _forget
            events = stack.enter_context(closing(self._events(state, cancel or threading.Event())))
            try:
                for event in events:
                    record(event)
                    yield event
            except TraceError:
                raise
            except GeneratorExit:  # nobody reads on
                record(state.ended(Ending("cancelled", "the stream was closed")))
                raise
            except BaseException as error:  # a bug, here or in a tool's types: the trace still ends
                record(state.ended(Ending("endpoint_error", f"{type(error).__name__}: {error}")))
                raise

    def _events(self, state: RunState, cancel: threading.Event) -> Generator[Event, None, None]:
        yield RunStarted(
            run_id=state.run_id,
            question=state.question,
            protocol=self.protocol.version,
            model=self.endpoint.name,
            fingerprint=self.endpoint.fingerprint,
            enforced=next(iter(self.endpoint.languages), ""),
            chat_format=self.endpoint.chat.name,
            tools=tuple(spec.name for spec in self.toolbox.specs),
            settings={**asdict(self.budgets), **asdict(self.sampling), "evidence_gate": self.evidence_gate},
            version=__version__,
        )
        transcript = self._opening.copy()
        transcript.user([Segment(state.question)])
        try:
            ending = yield from self._loop(state, transcript, cancel)
        except ContextOverflowError as error:
            ending = Ending("context_overflow", str(error))
        except (EndpointError, GrammarError) as error:
            ending = Ending("endpoint_error", str(error))
        except KeyboardInterrupt:
            ending = Ending("cancelled", "interrupted")
        yield state.ended(ending)

    # --- small parts

    def _protocol(self, name: str | None, spelling: Mapping[str, Any] | None) -> Protocol:
        """The one asked for; the card's spelling goes with the card's protocol only."""
        card = self.endpoint.card
        name = name or card.protocol
        if spelling is None:
            spelling = card.spelling if name == card.protocol else {}
        return named_protocol(name, spelling)

    def _grammar(self, spec: TurnSpec) -> TurnGrammar | None:
        """The turn in the language that the endpoint enforces; None only where it enforces none."""
        if not self.endpoint.languages:
            return None
        return self.protocol.grammar(spec, self.endpoint.languages[0])

    def _check_tools(self) -> None:
        """Compile the grammar of all tools, so that a schema that can't be enforced shows up now."""
        specs = self.toolbox.specs
        if (grammar := self._grammar(TurnSpec(specs))) is None:
            return
        try:
            self.endpoint.check(grammar)
        except GrammarError as error:
            for spec in specs:
                try:
                    self.endpoint.check(self._grammar(TurnSpec((spec,))) or grammar)
                except GrammarError as why:
                    raise GrammarError(
                        f"the schema of tool {spec.name!r} can't be enforced: {why.message}",
                        "Change the schema, or leave the tool out.",
                    ) from error
            raise

    def _fit(self, transcript: context.Transcript, observation: Observation) -> Observation:
        """The observation, cut so that a last turn still fits into the context after it."""

        def shown(content: str) -> Observation:
            return Observation(observation.tool, content, observation.ok, observation.executed)

        def count(content: str) -> int:
            return self.endpoint.count(Prompt(tuple(self.protocol.observation(shown(content)))))

        kept = min(self.budgets.kept_for_last_turn, self.endpoint.n_ctx // 4)
        room = self.endpoint.n_ctx - kept - self.endpoint.count(transcript.prompt)
        return shown(context.fit(observation.content, room, count))

    def _trace_path(self, state: RunState) -> Path | None:
        if self.trace is None or not self.trace.is_dir():
            return self.trace
        return self.trace / f"{state.run_id}.jsonl"

    def close(self) -> None:
        """Free the model, if this agent loaded it."""
        self._owned.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

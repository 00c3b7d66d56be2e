"""The agent: what people build and run. The loop itself is in `loop.py`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from localreact import context, fitting
from localreact._version import __version__
from localreact.archive import Archive
from localreact.asyncs import in_thread
from localreact.budgets import Budgets
from localreact.checks import Check
from localreact.decoding import samplers
from localreact.endpoints.base import IN_PROCESS, Endpoint, level_of
from localreact.endpoints.reasoning import reasoning_budget
from localreact.endpoints.resolve import open_endpoint
from localreact.examples import examples_for
from localreact.grammar.schema import all_enforceable
from localreact.guards import Guards
from localreact.loop import Loop, to_the_end
from localreact.native import LEVEL, NATIVE, VERSION, NativeLoop, open_native, run_native
from localreact.observers import Observer, observed
from localreact.policy import Policy
from localreact.protocols import protocol as named_protocol
from localreact.recorded import Recording, check, settings, setup
from localreact.run import Run, Running, RunState
from localreact.tools import Tool, Toolbox
from localreact.tools.execution import Call
from localreact.tools.permission import Permission
from localreact.tools.toolbox import TIMEOUT
from localreact.trace.events import Event, ProtocolChanged, RunStarted
from localreact.trace.jsonl import path_for
from localreact.trace.reading import Trace, load
from localreact.types import Sampling, TurnSpec


class Agent:
    """Answers questions with tools, every turn held to its grammar.

        agent = Agent(tools=[calculator])
        print(agent.run("What is 3*45+2*12?").answer)

    Args:
        model: a model card's name (`smollm2`), the path of a GGUF file, the address of a server
            (`llama-server:http://host:8080`), or an endpoint; by default what LOCALREACT_MODEL says.
        tools: functions with type hints, or what `@tool` made of them.
        max_steps, max_tokens, deadline: budgets of a run; tokens are those generated, the
            deadline is in seconds. The last step, and the last tokens, are kept for an answer.
        max_turn_tokens, max_context: tokens of one turn, and of the prompt with it.
        keep_steps: where the context is full, so many last steps stay whole, and older ones are put in
            short.
        max_tool_errors: so many failed calls in a row close the tools.
        archive: a file in which what runs found out is kept; lines of it that bear on a question are put
            before it.
        guards: when a run counts as going in circles.
        checks: what an answer has to meet: functions of the Run, as it would end, that return what is to
            be mended (`localreact.checks` has some). After two tries an answer is partial.
        sampling: how tokens are chosen; greedy by default.
        tool_timeout: seconds that a tool's result is waited for, where the tool says nothing else.
        approval: asked with the call before tools with effects run (and those that demand it); returns
            whether it may be made.
        max_cost: what the tools of a run may cost in all, by their own hints. Before a call that would go
            beyond it, `over_budget` is asked with the call and the cost with it; without it, none is made.
        evidence_gate: no answer before a tool has given a result (where there are tools).
        cite: an answer carries evidence, which can only quote word for word what tools have said; so
            there is none before there is something to quote. In the json and text protocols.
        protocol, spelling, examples: the format of turns (`json`, `text`, `bracket` or `call`; of a
            server also `native`, its own tool calling, and `auto`, which tries that first), how it is
            written, and worked examples of each tool in the prompt; by default as the model card says.
        engine: what holds a model in process to its turns: `llguidance`, `gbnf` (llama.cpp's own
            grammars), or `free` for nothing (stop strings and the strict parser, to compare with). Of a
            server `free` asks for no grammar.
        chat_template: a file with a Jinja chat template, instead of the model's own.
        reasoning_tokens: for how many tokens a reasoning model may think before each turn, between its
            tags (`<think>`), besides `max_tokens`; closed by force when they are spent. By default as the
            model card says, or 512 where the chat template knows such tags; 0 switches it off.
        n_threads: threads that evaluate a model in process; by default the physical cores it may use.
        deterministic: the same question gives bit for bit the same run, whatever ran before it, at some
            cost in speed. Not where runs on several threads take turns with one another.
        trace: a file (for one run), or a folder that gets a file per run.
        observers: each is called once a run and returns what gets the run's events, as they happen and
            after they are in the trace. An exception that it raises ends the run.

    Raises:
        MissingPartError, ModelError, EndpointError: the model can't be had.
        ToolDefinitionError: a tool can't be offered.
        GrammarError: a tool's schema, or citing, can't be enforced.
        UsageError: citing without tools.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Endpoint | None = None,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        max_steps: int = 8,
        max_tokens: int = 4096,
        deadline: float | None = None,
        max_turn_tokens: int | None = None,
        max_context: int | None = None,
        keep_steps: int = 2,
        max_tool_errors: int = 4,
        archive: str | os.PathLike[str] | None = None,
        guards: Guards = Guards(),  # noqa: B008  (frozen)
        checks: Iterable[Check] = (),
        sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
        tool_timeout: float = TIMEOUT,
        approval: Callable[[Call], bool] | None = None,
        max_cost: float | None = None,
        over_budget: Callable[[Call, float], bool] | None = None,
        evidence_gate: bool = True,
        cite: bool = False,
        protocol: str | None = None,
        spelling: Mapping[str, Any] | None = None,
        examples: int | None = None,
        reasoning_tokens: int | None = None,
        trace: str | os.PathLike[str] | None = None,
        n_ctx: int | None = None,
        engine: str = "llguidance",
        observers: Iterable[Observer] = (),
        n_threads: int | None = None,
        deterministic: bool = False,
        chat_template: str | os.PathLike[str] | None = None,
    ) -> None:
        samplers.check(sampling)
        self.budgets = Budgets(
            max_steps,
            max_tokens,
            deadline,
            reasoning_tokens or 0,
            max_turn_tokens,
            max_context,
            keep_steps,
            max_tool_errors,
        )
        self.archive = None if archive is None else Archive(archive)
        self.toolbox = Toolbox(tools, timeout=tool_timeout)
        self.permission = Permission(approval, max_cost, over_budget)
        self.notices = self.toolbox.notices
        """What a person should know of the tools."""
        self.sampling = sampling
        self.evidence_gate = evidence_gate
        self.cite = cite
        self.trace = None if trace is None else Path(trace)
        self._observers = tuple(observers)
        self._owned = ExitStack()
        self.endpoint = open_endpoint(model, n_ctx, n_threads, engine, deterministic, chat_template)
        if self.endpoint is not model:
            self._owned.callback(self.endpoint.close)
        try:
            self.budgets = replace(
                self.budgets, reasoning_tokens=reasoning_budget(self.endpoint, reasoning_tokens)
            )
            native, protocol = (protocol, None) if protocol in NATIVE else (None, protocol)
            self._spelling = fitting.spelling(self.endpoint.card, protocol, spelling)
            self.protocol = named_protocol(protocol or self.endpoint.card.protocol, self._spelling)
            self._examples = self.endpoint.card.examples if examples is None else examples
            specs, self.relaxations = all_enforceable(self.toolbox.specs, self.endpoint.languages)
            self._loop = Loop(
                self.endpoint,
                self.protocol,
                self.toolbox,
                Policy(specs, evidence_gate, cite=cite, guards=guards, checks=tuple(checks)),
                self.budgets,
                sampling,
                self.permission,
            )
            self._native = open_native(self.endpoint, self._loop, native == "auto") if native else None
            self._language = ""
            self.level = self.endpoint.level
            sources = fitting.sample_sources(self.protocol) if cite else ()
            if (grammar := self._loop.grammar(TurnSpec(specs, sources=sources))) is not None:
                self.endpoint.check(grammar)
                self._language = grammar.language
                if self.level != IN_PROCESS:
                    self.level = level_of((grammar.language,))
            self._opening = context.opening(
                self.endpoint.chat,
                self.protocol,
                self.protocol.instructions(self.toolbox.specs, cite),
                examples_for(self.toolbox.specs, self._examples),
                cite,
            )
        except BaseException:
            self.close()
            raise

    # --- running it

    def run(
        self,
        question: str,
        cancel: threading.Event | None = None,
        *,
        tool_choice: str = "auto",
        answer: Any = None,
    ) -> Run:
        """Work on a question until the run has ended; how it ended is in the result's `status`.

        `cancel` stops the run from another thread. Ctrl-C ends it as `cancelled` too. `tool_choice` is
        `auto`, `none` (no tools), `required` (a call before anything else), or the tool to call first.
        `answer` is the answer's type: a pydantic model, `Literal["yes", "no"]`, `int`, a compiled regex, a
        JSON Schema, a type of outlines. The grammar holds it, and the run's `value` is of it.

        Raises:
            TraceError: the trace can't be written.
            UsageError: no such tool choice, or nothing that can be an answer's type.
            GrammarError: the answer's type can't be held by a grammar.
        """
        running = self.stream(question, cancel, tool_choice=tool_choice, answer=answer)
        for _ in running:
            pass
        return running.outcome

    def stream(
        self,
        question: str,
        cancel: threading.Event | None = None,
        *,
        tool_choice: str = "auto",
        answer: Any = None,
    ) -> Running:
        """The events of a run as they happen; the last is RunEnded. Closing it cancels the run."""
        loop = fitting.for_run(self._loop, tool_choice, answer)
        state = RunState(question)
        trace = path_for(self.trace, state.run_id)
        return Running(state, self._stream(loop, state, trace, cancel), trace)

    def resume(
        self,
        trace: str | os.PathLike[str],
        cancel: threading.Event | None = None,
        *,
        answer: Any = None,
        other_model: bool = False,
    ) -> Run:
        """Go on with a run that was stopped or killed, from what its trace has of it, in the same trace.

        Nothing that was recorded is done again: the model's turns and the tools' results are taken from
        the trace, and the budgets count what was used. A call that had begun and has no recorded end isn't
        repeated: the model is told that its outcome is unknown. The agent needs the tools, protocol and
        model that the run began with, and the same `answer`; with `other_model` any model.

        Raises:
            UsageError: the run has its answer, or this agent isn't one that could have made it.
            TraceError: the trace can't be read or written, or its run still goes on.
        """
        running = self.stream_resumed(trace, cancel, answer=answer, other_model=other_model)
        for _ in running:
            pass
        return running.outcome

    def stream_resumed(
        self,
        trace: str | os.PathLike[str],
        cancel: threading.Event | None = None,
        *,
        answer: Any = None,
        other_model: bool = False,
    ) -> Running:
        """`resume`, as the events that are new."""
        recorded = load(Path(trace))
        loop, state = self._as_recorded(recorded, answer)
        check(recorded, self._started(loop, state), other_model)
        recording = Recording(recorded, same_model=recorded.started.fingerprint == self.endpoint.fingerprint)
        return Running(state, self._stream(loop, state, recorded.path, cancel, recording), recorded.path)

    def replayed(
        self, trace: Trace, *, answer: Any = None, execute: bool = False
    ) -> Iterator[tuple[Event, Event]]:
        """Go through a recorded run once more, with its model outputs, and its tool results unless calls
        are to be executed: each recorded event, and what comes of it now. After a first difference the
        rest means little."""
        loop, state = self._as_recorded(trace, answer)
        recording = Recording(trace, whole=True)
        with closing(self._looped(recording.loop(loop, execute), state, threading.Event())) as events:
            yield from recording.pairs(events, state)

    def _as_recorded(self, trace: Trace, answer: Any) -> tuple[Loop, RunState]:
        began = trace.started
        loop = fitting.for_run(self._loop, str(began.settings.get("tool_choice", "auto")), answer)
        return loop, RunState(began.question, began.run_id, recalled=began.recalled)

    async def arun(self, question: str, *, tool_choice: str = "auto", answer: Any = None) -> Run:
        """`run` without blocking the event loop. Cancelling the task cancels the run."""
        cancel = threading.Event()
        try:
            return await asyncio.to_thread(self.run, question, cancel, tool_choice=tool_choice, answer=answer)
        except asyncio.CancelledError:
            cancel.set()
            raise

    async def astream(
        self, question: str, *, tool_choice: str = "auto", answer: Any = None
    ) -> AsyncIterator[Event]:
        """`stream` without blocking the event loop. Closing the iterator cancels the run."""
        cancel = threading.Event()
        try:
            async for event in in_thread(
                lambda: self.stream(question, cancel, tool_choice=tool_choice, answer=answer)
            ):
                yield event
        finally:
            cancel.set()

    def _stream(
        self,
        loop: Loop,
        state: RunState,
        trace: Path | None,
        cancel: threading.Event | None,
        recording: Recording | None = None,
    ) -> Generator[Event, None, None]:
        events = self._events(loop, state, cancel or threading.Event(), recording)
        after = None if recording is None else recording.size
        return observed(events, state, trace, after, self._observers)

    def _events(
        self, loop: Loop, state: RunState, cancel: threading.Event, recording: Recording | None
    ) -> Generator[Event, None, None]:
        if recording is None:
            native = self._usable_native
            state.recalled = self.archive.recall(state.question) if self.archive else ()
            yield self._started(loop, state, native)
            yield from self._looped(loop, state, cancel, native)
            return
        with closing(self._looped(recording.loop(loop), state, cancel)) as recorded:
            new = recording.follow(recorded, state)
            first = next(new)  # before the trace is written to: it may turn out not to fit
            yield replace(self._started(loop, state), resumed=recording.steps)
            yield first
            yield from new

    def _looped(
        self, loop: Loop, state: RunState, cancel: threading.Event, native: NativeLoop | None = None
    ) -> Generator[Event, None, None]:
        transcript = self._opening.copy()
        transcript.ask(context.question(state.question, loop.policy.answer_type, state.recalled))
        if native is None:
            running = loop.run(state, transcript, cancel)
        else:
            changed = ProtocolChanged(self.protocol.version, self._language, self.level, "")
            running = run_native(native, loop, state, transcript, cancel, changed)
        ending = yield from to_the_end(running)
        ended = state.ended(ending)
        yield ended
        if self.archive:
            self.archive.add(state.outcome(ended))

    def _started(self, loop: Loop, state: RunState, native: NativeLoop | None = None) -> RunStarted:
        return RunStarted(
            run_id=state.run_id,
            question=state.question,
            protocol=VERSION if native else self.protocol.version,
            model=self.endpoint.name,
            fingerprint=self.endpoint.fingerprint,
            enforced="" if native else self._language,
            level=LEVEL if native else self.level,
            chat_format=self.endpoint.chat.name,
            tools=tuple(spec.name for spec in self.toolbox.specs),
            settings=settings(loop),
            version=__version__,
            setup=setup(loop, self._spelling, self._examples),
            recalled=state.recalled,
        )

    # --- small parts

    @property
    def protocol_version(self) -> str:
        """Of the protocol that runs begin with."""
        return VERSION if self._usable_native else self.protocol.version

    @property
    def _usable_native(self) -> NativeLoop | None:
        return self._native if self._native and not self._native.objection else None

    def close(self) -> None:
        """Free the model, if this agent loaded it."""
        self._owned.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

"""The agent: what people build and run. The loop itself is in `loop.py`."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from localreact import fitting, teams
from localreact.archive import Archive
from localreact.assembly import assembled
from localreact.asyncs import AsyncTwins
from localreact.budgets import Budgets
from localreact.checks import Check
from localreact.decoding import samplers
from localreact.endpoints.base import Endpoint
from localreact.endpoints.reasoning import reasoning_budget
from localreact.endpoints.resolve import check_sampling, open_endpoint
from localreact.guards import Guards
from localreact.loop import Loop
from localreact.observers import Observer, observed
from localreact.policy import Policy, Strategy
from localreact.run import Run, Running, RunState
from localreact.tools import Tool, Toolbox
from localreact.tools.execution import Call
from localreact.tools.permission import Permission
from localreact.tools.toolbox import TIMEOUT
from localreact.trace.events import Event
from localreact.trace.jsonl import path_for
from localreact.trace.reading import Trace, load
from localreact.types import Sampling, ToolExample


class Agent(AsyncTwins):
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
            short: a line each or, with `summaries`, what the model says of them in a turn of its own.
        max_tool_errors: so many failed calls in a row close the tools.
        archive: a file in which what runs found out is kept; lines of it that bear on a question are put
            before it.
        guards: when a run counts as going in circles: `Guards(repeats=3, exempt=("poll",))`; all thresholds
            are there.
        strategy: `react`, or `plan`: the model first says what is to be done, in a turn that can be
            nothing else, then takes one step of that after the other, and says anew after each what is
            left. Within the same budgets: a plan is never longer than `max_steps` has turns for.
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
        gpu_layers: layers of it that a GPU evaluates, where there is one; -1 for all (`LlamaEndpoint`).
        deterministic: the same question gives bit for bit the same run, whatever ran before it, at some
            cost in speed. Not where runs on several threads take turns with one another.
        trace: a file (for one run), or a folder that gets a file per run.
        observers: each is called once a run and returns what gets the run's events, as they happen and
            after they are in the trace. An exception that it raises ends the run.

    Raises:
        MissingPartError, ModelError, EndpointError: the model can't be had.
        ToolDefinitionError: a tool can't be offered.
        GrammarError: a tool's schema, or citing or planning, can't be enforced.
        UsageError: citing or planning without tools, a plan that `max_steps` has no turns for, or sampling
            that the model's server doesn't have.
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
        summaries: bool = False,
        strategy: Strategy = "react",
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
        gpu_layers: int = 0,
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
        self.trace = None if trace is None else Path(trace)
        self._observers = tuple(observers)
        self._owned = ExitStack()
        self.endpoint = open_endpoint(
            model, n_ctx, n_threads, engine, deterministic, chat_template, gpu_layers
        )
        if self.endpoint is not model:
            self._owned.callback(self.endpoint.close)
        try:
            check_sampling(self.endpoint, sampling)
            self.budgets = replace(
                self.budgets, reasoning_tokens=reasoning_budget(self.endpoint, reasoning_tokens)
            )
            self._parts, self.relaxations = assembled(
                self.endpoint,
                self.toolbox,
                self.budgets,
                sampling,
                self.permission,
                self.archive,
                protocol=protocol,
                spelling=spelling,
                examples=examples,
                summaries=summaries,
                rules=partial(
                    Policy,
                    evidence_gate=evidence_gate,
                    cite=cite,
                    guards=guards,
                    checks=tuple(checks),
                    strategy=strategy,
                ),
            )
            self.protocol = self._parts.loop.protocol
            self.level = self._parts.level
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
        loop = fitting.for_run(self._parts.loop, tool_choice, answer)
        return self._running(loop, RunState(question), self.trace, cancel)

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
        loop, state = self._parts.as_recorded(recorded, answer)
        recording = self._parts.recording(recorded, loop, state, other_model)
        events = self._parts.resumed(loop, state, cancel or threading.Event(), recording)
        shown = self._observed(events, state, recording.size)
        return Running(state, shown, state.trace, loop.policy.answer_relaxations)

    def replayed(
        self, trace: Trace, *, answer: Any = None, execute: bool = False
    ) -> Iterator[tuple[Event, Event]]:
        """Go through a recorded run once more, with its model outputs, and its tool results unless calls
        are to be executed: each recorded event, and what comes of it now. After a first difference the
        rest means little."""
        return self._parts.replayed(trace, answer, execute)

    # --- for other agents

    def as_tool(
        self,
        name: str,
        description: str,
        *,
        share: float = 0.5,
        timeout: float = math.inf,
        cost: float = 0.0,
        examples: Sequence[ToolExample] = (),
    ) -> Tool:
        """This agent as a tool of another: it gets a question, works on it in a run of its own, with its
        own tools and a trace of its own, and its answer is the result. How its run ended is told with it.

        It may use up a `share` of the tokens, the time and the cost that are left to the run that calls
        it, and no more than its own budgets. What it used counts against that run's. Stopping that run
        stops it; `timeout` bounds one question besides (in seconds). `cost` is a call's own, `examples`
        are worked uses, as of any tool.

        Raises:
            UsageError: a share that is none.
        """

        def begin(question: str, call: Call) -> tuple[Running, RunState]:
            loop = teams.within(self._parts.loop, call.outer, share)
            state = RunState(question, parent=call.key)
            folder = self.trace or call.outer.traces
            return self._running(loop, state, folder, call.abandoned), state

        return teams.as_tool(
            begin,
            self._parts.loop.spent,
            name,
            description,
            share=share,
            timeout=timeout,
            cost=cost,
            effects=any(self.toolbox[each.name].effects for each in self.toolbox.specs),
            examples=examples,
        )

    def _running(
        self, loop: Loop, state: RunState, trace: Path | None, cancel: threading.Event | None
    ) -> Running:
        state.trace = path_for(trace, state.run_id)
        events = self._parts.begun(loop, state, cancel or threading.Event())
        return Running(state, self._observed(events, state), state.trace, loop.policy.answer_relaxations)

    def _observed(
        self, events: Generator[Event, None, None], state: RunState, after: int | None = None
    ) -> Generator[Event, None, None]:
        return observed(events, state, state.trace, after, self._observers)

    # --- small parts

    @property
    def protocol_version(self) -> str:
        """Of the protocol that runs begin with."""
        return self._parts.version

    def close(self) -> None:
        """Free the model, if this agent loaded it."""
        self._owned.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

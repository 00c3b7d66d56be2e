"""Replays a recorded run: the loop of today on the model outputs of then."""

from __future__ import annotations

import bisect
import inspect
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pydantic import TypeAdapter

from localreact.agent import Agent
from localreact.endpoints.base import Endpoint
from localreact.endpoints.cards import GENERIC
from localreact.endpoints.chat import TRANSCRIPT, ChatFormat
from localreact.errors import EndpointError, UsageError
from localreact.guards import Guards
from localreact.tools import Tool
from localreact.trace.compare import difference
from localreact.trace.events import RunStarted, StepStarted, TurnCompleted
from localreact.trace.reading import Trace
from localreact.types import (
    Completion,
    Limits,
    Prompt,
    Reasoning,
    Sampling,
    Span,
    ToolSpec,
    TurnGrammar,
)


@dataclass(frozen=True)
class Replay:
    """`events` were the same; then came `difference`, in `step`, unless that is empty."""

    events: int
    step: int
    difference: str


def replay(
    trace: Trace,
    tools: Sequence[Tool] | None = None,
    endpoint: Endpoint | None = None,
    execute: bool = False,
) -> Replay:
    """Run the loop on what the trace has of the model and of the tools, and find the first difference.

    Needs neither the model nor the tools: their descriptions are in the trace, and tokens of prompts are
    estimated from those that were counted. With `endpoint` they are counted; with `tools`, today's
    descriptions count; with `execute` these are really called, each time that the run called them.

    Raises:
        UsageError: the trace (of version 1) doesn't say what the tools were, or there are none to execute.
    """
    began = trace.started
    if not began.protocol.startswith("react-"):
        raise UsageError(f"a run of the protocol {began.protocol} can't be replayed")
    if execute and tools is None:
        raise UsageError("there are no tools to execute", "Give them: -T …")
    if tools is None:
        tools = [Tool(spec, _not_called) for spec in _specs(began)]
    exact = bool(began.setup) or endpoint is not None
    settings = {**began.settings, **began.setup}
    settings["checks"] = ()  # what they said is recorded
    if "guards" in settings:
        settings["guards"] = TypeAdapter(Guards).validate_python(settings["guards"])
    taken = inspect.signature(Agent.__init__).parameters.keys() - {"tools", "protocol", "n_ctx"}
    name, _, _ = began.protocol.removeprefix("react-").partition("/")
    with Agent(
        endpoint or TraceEndpoint(trace),
        tools,
        protocol=name,
        sampling=Sampling(**{f.name: settings[f.name] for f in fields(Sampling) if f.name in settings}),
        **{key: value for key, value in settings.items() if key in taken},
    ) as agent:
        answer = began.setup.get("answer", began.settings.get("answer_schema"))
        number, step = 0, 0
        for number, (before, now) in enumerate(agent.replayed(trace, answer=answer, execute=execute)):
            step = getattr(before, "step", step)
            if problem := difference(before, now, prompts=exact):
                return Replay(number, step, problem)
        return Replay(number + 1, step, "")


def _specs(began: RunStarted) -> Iterable[ToolSpec]:
    if "tools" not in began.setup:
        if began.tools:
            raise UsageError(
                "this trace is of version 1: it doesn't say what its tools took", "Give the tools: -T …"
            )
        return ()
    return TypeAdapter(tuple[ToolSpec, ...]).validate_python(began.setup["tools"])


def _not_called(**arguments: Any) -> None:
    raise AssertionError("a replayed run called a tool")


class TraceEndpoint:
    """Stands in for a model that isn't there: it has its name and its delimiters, and completes nothing."""

    def __init__(self, trace: Trace) -> None:
        began = trace.started
        self.name = began.model
        self.fingerprint = began.fingerprint
        self.languages: tuple[str, ...] = (began.enforced,) if began.enforced else ()
        self.level = began.level
        self.chat: ChatFormat = ChatFormat(**began.setup["chat"]) if "chat" in began.setup else TRANSCRIPT
        self.card = GENERIC
        self.n_ctx = int(began.setup.get("n_ctx", 1 << 20))
        reasoning = began.setup.get("reasoning")
        self.reasoning: Reasoning | None = Reasoning(**reasoning) if reasoning else None
        self.notices: list[str] = []
        self._counted = _counted(trace)

    def count(self, prompt: Prompt) -> int:
        """What was counted for the longest recorded prompt within this one, and an estimate of the rest."""
        length = len(prompt.text)
        at = bisect.bisect_right(self._counted, (length, 1 << 60)) - 1
        characters, tokens = self._counted[at]
        return tokens + (length - characters) // 4

    def check(self, grammar: TurnGrammar) -> None:
        """Nothing is generated here."""

    def complete(
        self, prompt: Prompt, grammar: TurnGrammar | None, limits: Limits, sampling: Sampling, turn: int = 0
    ) -> Generator[Span, None, Completion]:
        yield from ()
        raise EndpointError("the trace holds no further turn")

    def close(self) -> None:
        """Nothing to free."""


def _counted(trace: Trace) -> list[tuple[int, int]]:
    """How long prompts were, in characters and tokens, in rising order."""
    found, characters = [(0, 0)], 0
    for entry in trace.effective:
        if isinstance(entry.event, StepStarted):
            characters += sum(len(segment.text) for segment in entry.event.prompt)
        elif isinstance(entry.event, TurnCompleted) and entry.event.completion.usage.prompt:
            found.append((characters, entry.event.completion.usage.prompt))
    return found

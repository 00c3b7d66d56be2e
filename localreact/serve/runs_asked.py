"""What a run can be asked for over HTTP, and the agent that works on it."""

from __future__ import annotations

import threading
from typing import Annotated, Any

from pydantic import Field

from localreact.agent import Agent
from localreact.endpoints.base import Endpoint
from localreact.run import Running
from localreact.serve.ask import ClientError
from localreact.serve.schemas import check_schema
from localreact.serve.settings import Settings
from localreact.serve.wire import Penalty, Share, Strict, Temperature, TopP
from localreact.tools import Tool
from localreact.tools.execution import Call
from localreact.trace import store
from localreact.types import Sampling


class RunRequest(Strict):
    """A question, and how it is worked on. `tools` names some of the server's; without it, all are there.

    With `stream` the events come as they happen. With `background` the run outlives the connection: where it
    doesn't stream, the answer comes at once (202), and the run is to be asked for later.
    """

    question: Annotated[str, Field(min_length=1, max_length=100_000)]
    model: str = ""
    stream: bool = False
    background: bool = False
    tools: list[str] | None = None
    tool_choice: str = "auto"
    answer_schema: dict[str, Any] | None = None
    protocol: str | None = None
    engine: str | None = None
    max_steps: Annotated[int, Field(ge=1, le=100)] = 8
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    reasoning_tokens: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    deadline: Annotated[float, Field(gt=0)] | None = None
    evidence_gate: bool = True
    cite: bool = False
    temperature: Temperature = 0.0
    top_k: Annotated[int, Field(ge=0, le=1 << 30)] = 0
    top_p: TopP = 1.0
    min_p: Share = 0.0
    repeat_penalty: Penalty = 1.0
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0


def objection(settings: Settings, tool: Tool) -> str:
    """Why a tool isn't offered over HTTP; empty where it is."""
    if tool.approve:
        return "it needs a person's approval, and there is nobody to ask"
    if tool.effects and tool.approve is None and not settings.allow_effects:
        return "it changes something; the server admits that with --allow-effects"
    return ""


def chosen(settings: Settings, names: list[str] | None) -> list[Tool]:
    """
    Raises:
        ClientError: 400, no such tool; 403, it isn't offered.
    """
    if names is None:
        return [tool for tool in settings.tools if not objection(settings, tool)]
    known = {tool.name: tool for tool in settings.tools}
    for name in names:
        if name not in known:
            said = f"there is no tool {name!r}; the tools are: {', '.join(known)}"
            raise ClientError(400, said, "tools", "unknown_tool")
        if problem := objection(settings, known[name]):
            raise ClientError(403, f"the tool {name!r} isn't offered: {problem}", "tools", "tool_refused")
    return [known[name] for name in dict.fromkeys(names)]


def prepare(
    settings: Settings, endpoint: Endpoint, tools: list[Tool], body: RunRequest, cancelled: threading.Event
) -> Running:
    """
    Raises:
        ClientError: 400, the answer's schema is none; 422, it goes beyond a cap.
        UsageError, GrammarError: there can be no such run.
    """
    if body.answer_schema is not None:
        check_schema(body.answer_schema, "answer_schema", settings.caps, "the answer: ")
    longest = settings.request_seconds
    agent = Agent(
        endpoint,
        tools,
        max_steps=body.max_steps,
        max_tokens=body.max_tokens,
        reasoning_tokens=body.reasoning_tokens,
        deadline=longest if body.deadline is None else min(body.deadline, longest),
        sampling=Sampling(
            body.temperature, body.top_k, body.top_p, body.min_p, body.seed, body.repeat_penalty
        ),
        approval=None if settings.allow_effects else _nobody,
        evidence_gate=body.evidence_gate,
        cite=body.cite,
        protocol=body.protocol,
        trace=store.writable_folder(),
    )
    return agent.stream(
        body.question.strip(), cancelled, tool_choice=body.tool_choice, answer=body.answer_schema
    )


def _nobody(call: Call) -> bool:
    return False

"""The arm `langgraph`: LangGraph's ready-made ReAct agent over the same server, with the same tools.

The framework decides what is asked when; here its messages become the events that every run has, so that
the same ledgers hold. Limits of steps, tokens and time are looked at between its steps. It has no gate, no
guards, and no way to say that something is missing.
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from localreact._version import __version__
from localreact.budgets import Budgets
from localreact.endpoints.base import Endpoint
from localreact.endpoints.server import ServerEndpoint, estimate
from localreact.errors import ContextOverflowError, EndpointError, MissingPartError, UsageError
from localreact.loop import to_the_end
from localreact.native import SYSTEM
from localreact.observers import observed
from localreact.run import Ending, Events, Run, Running, RunState
from localreact.tools import Toolbox
from localreact.trace.events import (
    Event,
    RunStarted,
    StepStarted,
    ToolEnded,
    ToolStarted,
    TurnCompleted,
    TurnRead,
    TurnRefused,
)
from localreact.types import (
    Completion,
    Finish,
    Observation,
    Sampling,
    Span,
    Timings,
    ToolCall,
    ToolSpec,
    Usage,
)

VERSION = "langgraph/1"
UNREADABLE = "calls that can't be read"
LEVEL = "the server's own tool calling, through LangGraph"


@dataclass(frozen=True)
class LangGraphAgent:
    """What of an agent an evaluation uses.

    Raises:
        UsageError: the endpoint is no server, or a task asks for what LangGraph's agent hasn't got.
        MissingPartError: LangGraph isn't installed.
    """

    endpoint: Endpoint
    toolbox: Toolbox
    budgets: Budgets
    sampling: Sampling
    trace: Path | None = None

    def __post_init__(self) -> None:
        _parts()
        if not isinstance(self.endpoint, ServerEndpoint):
            raise UsageError(
                f"{self.endpoint.name} is no server that LangGraph could talk to",
                "Give one with a chat API: -m openai:http://host:8000/v1#MODEL (localreact serve is one).",
            )

    def run(self, question: str, cancel: threading.Event | None = None, *, tool_choice: str = "auto") -> Run:
        state = RunState(question)
        events = self._events(state, cancel or threading.Event())
        running = Running(state, observed(events, state, self.trace, None, ()), self.trace)
        for _ in running:
            pass
        return running.outcome

    def _events(self, state: RunState, cancel: threading.Event) -> Generator[Event, None, None]:
        names = tuple(spec.name for spec in self.toolbox.specs)
        yield RunStarted(
            run_id=state.run_id,
            question=state.question,
            protocol=VERSION,
            model=self.endpoint.name,
            fingerprint=self.endpoint.fingerprint,
            enforced="",
            level=LEVEL,
            chat_format="",
            tools=names,
            settings={**asdict(self.budgets), **asdict(self.sampling)},
            version=__version__,
        )
        ending = yield from to_the_end(self._turns(state, cancel, names))
        yield state.ended(ending)

    def _turns(self, state: RunState, cancel: threading.Event, names: tuple[str, ...]) -> Events[Ending]:
        parts = _parts()
        with closing(self._messages(parts, state.question)) as messages:
            while True:
                if ending := self._limit(state, cancel):
                    return ending
                started = time.monotonic()
                reply = _next(parts, messages)
                completion = _completion(reply, time.monotonic() - started)
                step = len(state.steps) + 1
                yield StepStarted(step, (), names, True, False, self.budgets.max_tokens)
                yield TurnCompleted(step, completion)
                if not reply.tool_calls:
                    return (yield from self._end(state, reply, completion))
                answered: dict[str, Any] = {}
                while len(answered) < len({call["id"] for call in reply.tool_calls}):
                    message = _next(parts, messages)
                    answered[message.tool_call_id] = message
                for number, call in enumerate(reply.tool_calls):
                    share = completion if number == 0 else Completion("", completion.stop)
                    yield from _called(state, call, answered[call["id"]], share, number > 0)
                for _ in reply.invalid_tool_calls:  # it says nothing of them
                    yield TurnRefused(len(state.steps) + 1, UNREADABLE)
                    state.add(Completion("", completion.stop), problem="refused", same_reply=True)

    def _messages(self, parts: Any, question: str) -> Generator[Any, None, None]:
        """What the framework adds to the conversation, message by message."""
        server = self.endpoint
        assert isinstance(server, ServerEndpoint)
        path = "" if server.dialect.kind == "openai" else "/v1"
        model = parts.ChatOpenAI(
            model=server.model,
            base_url=server.dialect.transport.address + path,
            api_key=os.environ.get("LOCALREACT_API_KEY") or os.environ.get("OPENAI_API_KEY") or "none",
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            seed=self.sampling.seed,
            max_tokens=self.budgets.max_tokens,
            timeout=self.budgets.deadline_s,
            max_retries=0,  # attempts are counted, so they are the evaluation's
        )
        tools = [_offered(parts, self.toolbox, spec) for spec in self.toolbox.specs]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is told to be called by another name in another package
            graph = parts.create_react_agent(model, tools, prompt=SYSTEM)
        asked = {"messages": [("user", question)]}
        unlimited = {"recursion_limit": 10 * self.budgets.max_steps + 10}  # ours is looked at first
        for update in graph.stream(asked, unlimited, stream_mode="updates"):
            for change in update.values():
                yield from change["messages"]

    def _limit(self, state: RunState, cancel: threading.Event) -> Ending | None:
        seconds, most = time.monotonic() - state.started, self.budgets.deadline_s
        if cancel.is_set():
            return Ending("cancelled", "stopped between two turns")
        if len(state.steps) >= self.budgets.max_steps:
            return Ending("max_steps", f"no answer within {self.budgets.max_steps} steps")
        if state.usage.generated >= self.budgets.max_tokens:
            return Ending("token_budget", f"no answer within {self.budgets.max_tokens} tokens")
        if most is not None and seconds >= most:
            return Ending("deadline", f"no answer within {most:g} seconds")
        return None

    def _end(self, state: RunState, reply: Any, completion: Completion) -> Events[Ending]:
        """LangGraph's agent ends with the first reply that calls nothing, whatever it says."""
        step, text = len(state.steps) + 1, str(reply.text).strip()
        if not text:
            problem = UNREADABLE if reply.invalid_tool_calls else "an empty reply"
            yield TurnRefused(step, problem)
            state.add(completion, problem="refused")
            return Ending("protocol_loop", f"LangGraph ended the run: {problem}")
        if completion.stop == "length":  # it is handed out all the same
            yield TurnRefused(step, "the tokens ran out inside the turn")
            state.add(completion, problem="length")
            return Ending("partial", "the tokens ran out inside the answer", answer=text)
        turn = Finish("", answer=text)
        yield TurnRead(step, turn)
        state.add(completion, turn)
        return Ending("finished", answer=text)


def langgraph_agent(
    endpoint: Endpoint,
    toolbox: Toolbox,
    sampling: Sampling,
    policy: Mapping[str, Any],
    trace: Path | None,
) -> LangGraphAgent:
    """By a task's policy; what of it speaks of our turns alone (gate, examples) has no meaning there.

    Raises:
        UsageError, MissingPartError: as LangGraphAgent.
    """
    for name, usual in (("cite", False), ("tool_choice", "auto")):
        if policy.get(name, usual) != usual:
            raise UsageError(f"LangGraph's ready-made agent has no {name}")
    limits = {name: policy[name] for name in ("max_steps", "max_tokens") if name in policy}
    budgets = Budgets(**limits, deadline_s=policy.get("deadline"))
    return LangGraphAgent(endpoint, toolbox, budgets, sampling, trace)


def _parts() -> Any:
    """
    Raises:
        MissingPartError: LangGraph, or what it needs to talk to servers, isn't installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from langchain_core.tools import StructuredTool
            from langchain_openai import ChatOpenAI
            from langgraph.prebuilt import create_react_agent
            from openai import OpenAIError
    except ImportError as error:
        raise MissingPartError(
            f"the arm langgraph needs packages that aren't installed ({error.name})",
            "Run: pip install 'localreact[framework]'.",
        ) from error
    return SimpleNamespace(
        StructuredTool=StructuredTool,
        ChatOpenAI=ChatOpenAI,
        create_react_agent=create_react_agent,
        OpenAIError=OpenAIError,
    )


def _next(parts: Any, messages: Generator[Any, None, None]) -> Any:
    try:
        return next(messages)
    except parts.OpenAIError as error:
        said = f"{type(error).__name__}: {error}"
        if getattr(error, "status_code", 0) == 400 and "context" in said:
            raise ContextOverflowError(said) from error
        raise EndpointError(said) from error
    except StopIteration as error:
        raise EndpointError("LangGraph ended without a reply") from error


def _offered(parts: Any, toolbox: Toolbox, spec: ToolSpec) -> Any:
    """A tool as LangChain takes it; what it returns goes through unchanged."""

    def call(**arguments: Any) -> tuple[str, Observation]:
        observation = toolbox.execute(ToolCall("", spec.name, arguments))
        return observation.content, observation

    return parts.StructuredTool(
        name=spec.name,
        description=spec.description,
        args_schema=dict(spec.parameters),
        func=call,
        response_format="content_and_artifact",
    )


def _completion(reply: Any, seconds: float) -> Completion:
    """As a server's own tool calling has it (`native.py`), and the framework's time with it."""
    said = [
        *((call["name"], json.dumps(call["args"], ensure_ascii=False)) for call in reply.tool_calls),
        *((call["name"] or "", call["args"] or "") for call in reply.invalid_tool_calls),
    ]
    calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in said]
    message = {"role": "assistant", "content": str(reply.text), **({"tool_calls": calls} if calls else {})}
    text = json.dumps(message, ensure_ascii=False)
    counted = reply.usage_metadata or {}
    details = counted.get("input_token_details") or {}
    usage = Usage(
        prompt=counted.get("input_tokens", 0),
        reused=details.get("cache_read") or 0,
        sampled=counted.get("output_tokens", 0) or estimate(text),
    )
    cut = reply.response_metadata.get("finish_reason") == "length"
    return Completion(
        text,
        "length" if cut else "eog",
        spans=(Span("sampled", text),),
        usage=usage,
        timings=Timings(generate_s=seconds),
    )


def _called(
    state: RunState, call: Mapping[str, Any], result: Any, completion: Completion, same_reply: bool
) -> Events[None]:
    """A call that was made: the framework has made it by now."""
    step = len(state.steps) + 1
    turn, call_id = ToolCall("", call["name"], call["args"]), f"{state.run_id}:{step}"
    made = result.artifact
    if not isinstance(made, Observation):  # the framework's own word: there is no such tool
        made = Observation(call["name"], str(result.text), ok=False, executed=False)
    yield TurnRead(step, turn)
    if made.executed:
        yield ToolStarted(step, call_id, turn.tool, turn.arguments)
    observation = replace(made, excerpt=None)
    state.add(completion, turn, observation, same_reply=same_reply)
    yield ToolEnded(step, call_id, observation, 0.0)

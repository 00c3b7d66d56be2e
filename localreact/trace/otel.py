"""Runs as OpenTelemetry spans, with the names and attributes of the GenAI semantic conventions (1.41).

One span for the run (`invoke_agent`), below it one for each turn (`text_completion`) and one for each
call (`execute_tool`). What was said (questions, prompts, turns, arguments, results, answers) is left
out unless it is asked for. Needs the extra `otel`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from localreact._version import __version__
from localreact.errors import MissingPartError
from localreact.trace.events import (
    Event,
    Planned,
    RunEnded,
    RunStarted,
    StepStarted,
    ToolEnded,
    ToolStarted,
    TurnCompleted,
    TurnRefused,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

HINT = "Install them with: pip install 'localreact[otel]'"
NO_ERROR = ("finished", "insufficient", "partial", "cancelled")
FINISH_REASONS = {"complete": "stop", "eog": "stop"}


class Spans:
    """Feed it one run's events, or give `Spans` itself, or a partial of it, to an agent's `observers`.

    Spans go to `provider`, by default OpenTelemetry's global one. `content` adds what was said.

    Raises:
        MissingPartError: OpenTelemetry isn't installed.
    """

    def __init__(self, provider: TracerProvider | None = None, content: bool = False) -> None:
        try:
            from opentelemetry import trace
        except ModuleNotFoundError as error:
            raise MissingPartError("spans need OpenTelemetry", HINT) from error
        self._api = trace
        self._tracer = (provider or trace.get_tracer_provider()).get_tracer("localreact", __version__)
        self._content = content
        self._run: Span | None = None
        self._open: Span | None = None  # the turn or the call under way
        self._model = ""

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._model = event.model
                self._run = self._begin("invoke_agent", "localreact", _of_run(event))
                self._say(self._run, "gen_ai.input.messages", _message("user", event.question))
            case StepStarted():
                self._close()
                attributes = {
                    "gen_ai.request.max_tokens": event.max_tokens,
                    "gen_ai.output.type": "text",
                    "localreact.step": event.step,
                }
                self._open = self._begin("text_completion", self._model, attributes)
                text = "".join(segment.text for segment in event.prompt)
                self._say(self._open, "gen_ai.input.messages", _message("user", text))
            case TurnCompleted(completion=completion) if self._open:
                usage = completion.usage
                self._open.set_attributes(
                    {
                        "gen_ai.response.finish_reasons": [
                            FINISH_REASONS.get(completion.stop, completion.stop)
                        ],
                        "gen_ai.usage.input_tokens": usage.prompt,
                        "gen_ai.usage.cache_read.input_tokens": usage.reused,
                        "gen_ai.usage.output_tokens": usage.generated + usage.reasoning,
                        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
                        "localreact.usage.forced_tokens": usage.forced,
                    }
                )
                self._say(self._open, "gen_ai.output.messages", _message("assistant", completion.text))
                self._close()
            case TurnRefused(problem=problem) if self._run:
                details = {"localreact.problem": problem} if self._content else {}
                self._run.add_event("localreact.turn_refused", {"localreact.step": event.step, **details})
            case Planned() if self._run:
                counted: dict[str, Any] = {"localreact.step": event.step, "localreact.left": len(event.steps)}
                planned = {"localreact.plan": event.steps} if self._content else {}
                self._run.add_event("localreact.planned", counted | planned)
            case ToolStarted():
                attributes = {
                    "gen_ai.tool.name": event.tool,
                    "gen_ai.tool.type": "function",
                    "gen_ai.tool.call.id": event.call_id,
                }
                self._open = self._begin("execute_tool", event.tool, attributes)
                self._say(self._open, "gen_ai.tool.call.arguments", dict(event.arguments))
            case ToolEnded(observation=observation) if self._open:
                if not observation.ok:
                    self._fail(self._open, "tool_error")
                self._say(self._open, "gen_ai.tool.call.result", observation.content)
                self._close()
            case RunEnded() if self._run:
                self._close()
                self._run.set_attributes(
                    {
                        "localreact.status": event.status,
                        "localreact.steps": event.steps,
                        "gen_ai.usage.input_tokens": event.usage.prompt,
                        "gen_ai.usage.cache_read.input_tokens": event.usage.reused,
                        "gen_ai.usage.output_tokens": event.usage.generated + event.usage.reasoning,
                        "gen_ai.usage.reasoning.output_tokens": event.usage.reasoning,
                    }
                )
                if event.status not in NO_ERROR:
                    self._fail(self._run, event.status)
                if event.answer is not None:
                    self._say(self._run, "gen_ai.output.messages", _message("assistant", event.answer))
                self._run.end()
                self._run = None

    def _begin(self, operation: str, name: str, attributes: dict[str, Any]) -> Span:
        common = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "localreact",
            "gen_ai.request.model": self._model,
        }
        within = None if self._run is None else self._api.set_span_in_context(self._run)
        return self._tracer.start_span(f"{operation} {name}", within, attributes={**common, **attributes})

    def _close(self) -> None:
        if self._open is not None:
            self._open.end()
            self._open = None

    def _fail(self, span: Span, kind: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self._api.StatusCode.ERROR)

    def _say(self, span: Span, attribute: str, value: Any) -> None:
        if self._content:
            span.set_attribute(attribute, json.dumps(value, ensure_ascii=False, default=str))


def _of_run(started: RunStarted) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.agent.name": "localreact",
        "gen_ai.agent.version": started.version,
        "gen_ai.conversation.id": started.run_id,
        "localreact.protocol": started.protocol,
    }
    for name in ("temperature", "top_p", "top_k", "seed"):
        if name in started.settings:
            attributes[f"gen_ai.request.{name}"] = started.settings[name]
    return attributes


def _message(role: str, text: str) -> list[dict[str, Any]]:
    return [{"role": role, "parts": [{"type": "text", "content": text}]}]


@contextmanager
def exported(content: bool = False) -> Iterator[partial[Spans]]:
    """An observer whose spans go to an OTLP collector over HTTP, where OpenTelemetry's own environment
    variables say (OTEL_EXPORTER_OTLP_ENDPOINT, …); the last are sent when it is left.

    Raises:
        MissingPartError: OpenTelemetry or its exporter isn't installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise MissingPartError("exporting spans needs OpenTelemetry's SDK and OTLP exporter", HINT) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "localreact"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield partial(Spans, provider, content)
    finally:
        provider.shutdown()

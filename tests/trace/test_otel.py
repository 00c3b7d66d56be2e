from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from localreact import Agent, ScriptedEndpoint, Tool, tool
from localreact.errors import EndpointError, MissingPartError
from localreact.protocols import JsonProtocol
from localreact.trace.otel import Spans, exported
from localreact.types import Finish, ToolCall

WRITE = JsonProtocol().write
CALL = WRITE(ToolCall("I look it up.", "stock", {"sku": "SECRET"}))
FINISH = WRITE(Finish("I know it now.", answer="3"))


def spans(tools: list[Any], *replies: str | BaseException, content: bool = False) -> tuple[ReadableSpan, ...]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    observer = partial(Spans, provider, content)
    Agent(ScriptedEndpoint(replies), tools, observers=[observer]).run("How many SECRET are left?")
    return exporter.get_finished_spans()


def test_a_run_is_an_agents_span_with_its_turns_and_calls_below_it(stock: Tool) -> None:
    made = spans([stock], CALL, FINISH)
    assert [span.name for span in made] == [
        "text_completion scripted",
        "execute_tool stock",
        "text_completion scripted",
        "invoke_agent localreact",
    ]
    run = made[-1]
    assert run.parent is None
    assert all(span.parent == run.context for span in made[:-1])
    turn, call = dict(made[0].attributes or {}), dict(made[1].attributes or {})
    assert turn["gen_ai.operation.name"] == "text_completion"
    assert turn["gen_ai.request.model"] == "scripted"
    assert turn["gen_ai.response.finish_reasons"] == ("stop",)
    assert turn["gen_ai.usage.output_tokens"] == -(-len(CALL) // 4)
    assert call["gen_ai.tool.name"] == "stock"
    assert call["gen_ai.tool.type"] == "function"
    assert str(call["gen_ai.tool.call.id"]).endswith(":1")
    whole = dict(run.attributes or {})
    assert whole["gen_ai.operation.name"] == "invoke_agent"
    assert whole["localreact.status"] == "finished"
    assert str(whole["gen_ai.conversation.id"]) in str(call["gen_ai.tool.call.id"])
    assert whole["gen_ai.usage.output_tokens"] == sum(-(-len(text) // 4) for text in (CALL, FINISH))
    assert run.status.is_unset


def test_content_is_left_out_unless_asked_for(stock: Tool) -> None:
    for content in (False, True):
        made = spans([stock], CALL, "SECRET prose", FINISH, content=content)
        text = "".join(span.to_json() for span in made)
        assert ("SECRET" in text) == content
    call = next(span for span in made if span.name == "execute_tool stock")
    assert call.attributes is not None
    assert json.loads(str(call.attributes["gen_ai.tool.call.arguments"])) == {"sku": "SECRET"}
    assert json.loads(str(call.attributes["gen_ai.tool.call.result"])) == "3"


def test_failures_are_errors_and_every_span_ends() -> None:
    @tool
    def stock(sku: str) -> int:
        """How many are left."""
        raise OSError("down")

    made = spans([stock], CALL, "prose", EndpointError("gone"))
    assert [(span.name.split()[0], (span.attributes or {}).get("error.type")) for span in made] == [
        ("text_completion", None),
        ("execute_tool", "tool_error"),
        ("text_completion", None),
        ("text_completion", None),
        ("invoke_agent", "endpoint_error"),
    ]
    assert [event.name for event in made[-1].events] == ["localreact.turn_refused"]
    assert not made[-1].status.is_ok


def test_two_runs_of_one_agent_have_a_span_each(stock: Tool) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    agent = Agent(
        ScriptedEndpoint([CALL, CALL, FINISH, FINISH]), [stock], observers=[partial(Spans, provider)]
    )
    first, second = agent.stream("a"), agent.stream("b")
    for _ in zip(first, second, strict=False):  # interleaved
        pass
    for running in (first, second):
        list(running)
    runs = [span for span in exporter.get_finished_spans() if span.parent is None]
    assert len({span.context.trace_id for span in runs if span.context}) == 2


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingPartError, match=r"localreact\[otel\]"):
        Spans()
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    with pytest.raises(MissingPartError, match=r"localreact\[otel\]"), exported():
        pass

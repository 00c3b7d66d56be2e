"""Anthropic's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.clients.conftest import MODEL

anthropic = pytest.importorskip("anthropic")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]

QUESTION: Any = [{"role": "user", "content": "How many of article A7 are left?"}]
SKU = {"type": "object", "properties": {"sku": {"type": "string", "maxLength": 12}}, "required": ["sku"]}
STOCK: Any = {"name": "stock", "description": "Look up how many are left.", "input_schema": SKU}
ANY = {"type": "any"}


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_a_tool_is_used_and_its_result_read(client: Any) -> None:
    first = client.messages.create(
        model=MODEL, max_tokens=300, messages=QUESTION, tools=[STOCK], tool_choice=ANY
    )
    assert first.stop_reason == "tool_use"
    (use,) = first.content
    assert (use.type, use.name, use.input.keys()) == ("tool_use", "stock", {"sku"})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "There are 31 left."}
    history = [
        *QUESTION,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(
        model=MODEL, max_tokens=300, messages=history, tools=[STOCK], tool_choice={"type": "none"}
    )
    assert second.stop_reason == "end_turn"
    assert second.content[0].text


def test_the_streaming_helper_makes_the_same_message(client: Any) -> None:
    request: Any = {"model": MODEL, "max_tokens": 300, "messages": QUESTION, "tools": [STOCK]}
    request |= {"tool_choice": ANY, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    whole = client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        seen = [each.type for each in stream]
        final = stream.get_final_message()
    assert [each.type for each in whole.content] == ["thinking", "tool_use"]
    assert [(each.type, getattr(each, "input", None)) for each in final.content] == [
        (each.type, getattr(each, "input", None)) for each in whole.content
    ]
    assert final.content[0].thinking == whole.content[0].thinking
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert {"thinking", "input_json"} <= set(seen)


def test_text_streams_and_stops(client: Any) -> None:
    say: Any = [{"role": "user", "content": "Count from one to ten in words."}]
    with client.messages.stream(model=MODEL, max_tokens=30, messages=say) as stream:
        text = "".join(stream.text_stream)
    assert text == stream.get_final_message().content[0].text
    stop = text[8:10]
    stopped = client.messages.create(model=MODEL, max_tokens=30, messages=say, stop_sequences=[stop])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)


def test_tokens_are_counted(client: Any) -> None:
    assert client.messages.count_tokens(model=MODEL, messages=QUESTION, tools=[STOCK]).input_tokens > 100


def test_errors_are_told_as_such(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude", max_tokens=5, messages=QUESTION)
    with pytest.raises(anthropic.BadRequestError, match="two tools"):
        client.messages.create(model=MODEL, max_tokens=5, messages=QUESTION, tools=[STOCK, STOCK])

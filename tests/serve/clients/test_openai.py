"""OpenAI's own client: chat with tools, its streaming helper, parse; Responses; completions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.serve.clients.conftest import MODEL
from tests.serve.server import tool

openai = pytest.importorskip("openai")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]

QUESTION: Any = [{"role": "user", "content": "How many of article A7 are left?"}]
STOCK = tool("stock", sku={"type": "string", "maxLength": 12})
PRICE = tool("price", sku={"type": "string", "maxLength": 12}, currency={"enum": ["EUR", "USD"]})


class Verdict(BaseModel):
    mood: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "price"}}])
def test_tools_are_called_and_their_results_read(client: Any, choice: Any) -> None:
    first = client.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=[STOCK, PRICE], tool_choice=choice
    )
    assert first.choices[0].finish_reason == "tool_calls"
    message = first.choices[0].message
    assert message.content is None
    (call,) = message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert isinstance(arguments["sku"], str)
    if choice != "required":
        assert call.function.name == "price"
        assert arguments["currency"] in ("EUR", "USD")
    history = [*QUESTION, message, {"role": "tool", "tool_call_id": call.id, "content": "There are 31 left."}]
    second = client.chat.completions.create(
        model=MODEL, messages=history, tools=[STOCK, PRICE], tool_choice="none"
    )
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content
    # What was evaluated for the call isn't evaluated again.
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 8


def test_the_streaming_helper_makes_the_same_call(client: Any) -> None:
    request = {"model": MODEL, "messages": QUESTION, "tools": [STOCK], "tool_choice": "required"}
    whole = client.chat.completions.create(**request).choices[0].message.tool_calls[0].function
    with client.chat.completions.stream(**request, stream_options={"include_usage": True}) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == (whole.name, whole.arguments)
    deltas = [each for each in events if each.type == "tool_calls.function.arguments.delta"]
    assert "".join(each.arguments_delta for each in deltas) == whole.arguments
    assert [each.type for each in events].count("tool_calls.function.arguments.done") == 1
    assert final.usage.completion_tokens > 0


def test_parse_reads_a_model_of_pydantics(client: Any) -> None:
    completion = client.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Verdict)
    assert isinstance(completion.choices[0].message.parsed, Verdict)


def test_text_comes_in_a_stream(client: Any) -> None:
    request = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 20}
    whole = client.chat.completions.create(**request).choices[0].message.content
    stream = client.chat.completions.create(**request, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole


def test_errors_are_told_as_such(client: Any) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=QUESTION, tools=[STOCK, STOCK])
    assert refused.value.param == "tools/1/name"


@pytest.mark.parametrize("stream", [False, True])
def test_responses_call_and_answer(client: Any, stream: bool) -> None:
    stock = {"type": "function", **STOCK["function"], "strict": True}
    request: Any = {"model": MODEL, "tools": [stock], "tool_choice": "required", "input": QUESTION}
    if stream:
        with client.responses.stream(**request) as events:
            seen = [each.type for each in events]
            response = events.get_final_response()
        assert (seen[0], seen[-1]) == ("response.created", "response.completed")
    else:
        response = client.responses.create(**request)
    (call,) = [each for each in response.output if each.type == "function_call"]
    assert call.name == "stock"
    assert json.loads(call.arguments).keys() == {"sku"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "There are 31 left."}
    items = [*QUESTION, *(each.to_dict() for each in response.output), output]
    second = client.responses.create(model=MODEL, tools=[stock], tool_choice="none", input=items)
    assert second.status == "completed"
    assert second.output_text


def test_responses_parse_reads_a_model_of_pydantics(client: Any) -> None:
    response = client.responses.parse(model=MODEL, input="How was the film?", text_format=Verdict)
    assert isinstance(response.output_parsed, Verdict)


def test_responses_are_not_stored(client: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")


def test_completions_are_held_to_a_regex(client: Any) -> None:
    completion = client.completions.create(
        model=MODEL,
        prompt=["The year is", "My birthday is in"],
        extra_body={"structured_outputs": {"regex": r" [12]\d{3}"}},
    )
    assert [each.text[1:].isdigit() and len(each.text) for each in completion.choices] == [5, 5]

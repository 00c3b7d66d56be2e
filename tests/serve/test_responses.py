"""`/v1/responses` over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.scripted import ScriptedEndpoint
from localreact.errors import EndpointError
from tests.serve.server import Json, Server, serving
from tests.serve.streams import CALL, FINISH, events, failing, joined, types

PATH = "/v1/responses"
SKU = {"type": "object", "properties": {"sku": {"type": "string", "maxLength": 8}}, "required": ["sku"]}
TOOL = {"type": "function", "name": "stock", "description": "Look it up.", "parameters": SKU}
OTHER = {**TOOL, "name": "price"}


@pytest.fixture(scope="module")
def server(tiny: LlamaEndpoint) -> Iterator[Server]:
    with serving(tiny, max_tokens=400) as server:
        yield server


def respond(server: Server, input: Any = "How many are left?", **fields: Any) -> Json:
    answer = server.post(PATH, {"input": input, **fields})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def test_a_call_is_an_item_behind_its_thought() -> None:
    with serving(ScriptedEndpoint([CALL])) as server:
        response = respond(server, tools=[TOOL])
    assert (response["object"], response["status"]) == ("response", "completed")
    thought, call = response["output"]
    assert thought["type"] == "reasoning"
    assert thought["content"] == [{"type": "reasoning_text", "text": "I look it up."}]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "stock", "completed")
    assert call["arguments"] == '{"sku": "Ä\\n7"}'
    assert call["call_id"].startswith("call_")
    assert response["parallel_tool_calls"] is False
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_the_events_of_a_call_come_in_their_order() -> None:
    with serving(ScriptedEndpoint([CALL])) as server:
        found = events(server, PATH, {"input": "?", "tools": [TOOL]})
    assert types(found) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    last = found[-1]["response"]
    done = [each for each in found if each["type"] == "response.output_item.done"]
    assert [each["item"] for each in done] == last["output"]
    assert [each["output_index"] for each in done] == [0, 1]
    added = [each["item"] for each in found if each["type"] == "response.output_item.added"]
    assert [(each["type"], each["status"]) for each in added] == [
        ("reasoning", "in_progress"),
        ("function_call", "in_progress"),
    ]
    assert (added[0]["content"], added[1]["arguments"]) == ([], "")
    assert joined(found, "response.function_call_arguments.delta") == last["output"][1]["arguments"]
    assert joined(found, "response.reasoning_text.delta") == "I look it up."
    assert found[0]["response"]["id"] == last["id"]


def test_the_events_of_an_answer_come_in_their_order() -> None:
    with serving(ScriptedEndpoint(["Hello there."])) as server:
        found = events(server, PATH, {"input": "Hi", "instructions": "Be kind."})
    assert types(found) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    (item,) = found[-1]["response"]["output"]
    assert item["content"] == [
        {"type": "output_text", "text": "Hello there.", "annotations": [], "logprobs": []}
    ]
    assert joined(found, "response.output_text.delta") == "Hello there."
    assert found[-1]["response"]["instructions"] == "Be kind."


def test_an_empty_answer_is_a_message_all_the_same() -> None:
    with serving(ScriptedEndpoint(["", ""])) as server:
        (item,) = respond(server)["output"]
        found = events(server, PATH, {"input": "Hi"})
    assert (item["type"], item["content"][0]["text"]) == ("message", "")
    assert types(found)[-5:] == [
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_a_cut_reply_is_incomplete_and_half_a_call_none(server: Server) -> None:
    body = {"input": "?", "tools": [TOOL], "tool_choice": "required", "max_output_tokens": 25}
    whole = respond(server, **body)
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert all(each["type"] != "function_call" for each in whole["output"])
    found = events(server, PATH, body)
    assert found[-1]["type"] == "response.incomplete"
    assert all(each["type"] != "function_call" for each in found[-1]["response"]["output"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"stock", "price"}),
        ({"type": "function", "name": "price"}, {"price"}),
        ("none", set()),
    ],
)
def test_the_tool_choice_is_obeyed(server: Server, stream: bool, choice: Any, names: set[str]) -> None:
    for seed in range(4):
        body = {"tools": [TOOL, OTHER], "tool_choice": choice, "seed": seed, "temperature": 1.0}
        if stream:
            response = events(server, PATH, {"input": "?", **body})[-1]["response"]
        else:
            response = respond(server, "?", **body)
        called = [each["name"] for each in response["output"] if each["type"] == "function_call"]
        assert response["status"] == "completed" or not names  # an answer may grow long
        assert len(called) == bool(names)
        assert set(called) <= names


def test_a_history_of_items_reaches_the_model() -> None:
    endpoint = ScriptedEndpoint([FINISH])
    history = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Both?"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Both."}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "stock", "arguments": '{"sku": "A"}'},
        {"type": "function_call", "call_id": "b", "name": "stock", "arguments": '{"sku": "B"}'},
        {"type": "function_call_output", "call_id": "b", "output": "B has 2"},
        {
            "type": "function_call_output",
            "call_id": "a",
            "output": [{"type": "input_text", "text": "A has 1"}],
        },
    ]
    with serving(endpoint) as server:
        response = respond(server, history, tools=[TOOL])
    assert response["output"][-1]["content"][0]["text"] == "There are 3."
    text = endpoint.prompts[0].text
    places = [text.index(each) for each in ("Be brief.", "Both?", '"A"', "A has 1", '"B"', "B has 2")]
    assert places == sorted(places)
    assert '"thought": "Both."' in text


def test_a_format_holds_the_answer(server: Server) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    format_ = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    response = respond(server, "?", text={"format": format_}, temperature=1.0, seed=1)
    assert json.loads(response["output"][-1]["content"][0]["text"])["n"] in (1, 2)
    assert response["text"] == {"format": format_}


def test_a_failure_in_a_stream_is_its_last_event() -> None:
    with serving(ScriptedEndpoint([EndpointError("it broke")])) as server:
        found = events(server, PATH, {"input": "Hi"})
    assert types(found) == ["response.created", "response.in_progress", "response.failed"]
    assert found[-1]["response"]["status"] == "failed"
    assert found[-1]["response"]["error"]["message"] == "it broke"


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"previous_response_id": "resp_1"}, 400, "previous_response_id"),
        ({"conversation": "conv_1"}, 400, "conversation"),
        ({"background": True}, 400, "background"),
        ({"model": "gpt-5"}, 404, "model"),
        ({"input": []}, 400, "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, 400, None),
        ({"input": [{"content": "x"}]}, 400, "input/0/role"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, 400, "input/0"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            400,
            "input/0/content/0",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "1"}]}, 400, None),
        ({"input": [{"type": "function_call", "name": "a"}]}, 400, "input/0/call_id"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools/0/type"),
        ({"tools": [TOOL, TOOL]}, 400, "tools/1/name"),
        ({"tools": [{**TOOL, "parameters": {"type": "object", "properties": 3}}]}, 400, None),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "zz"}}, 400, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, 400, "text/format/schema"),
        ({"nonsense": 1}, 400, "nonsense"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    server: Server, fields: Json, status: int, param: str | None
) -> None:
    error = failing(server, PATH, status, {"input": "?", **fields})["error"]
    assert error["message"]
    if param is not None:
        assert error["param"] == param

"""Anthropic's `/v1/messages` over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.scripted import ScriptedEndpoint
from localreact.errors import EndpointError
from tests.serve.server import Json, Server, serving
from tests.serve.streams import ARGUMENTS, CALL, FINISH, events, failing, types

PATH = "/v1/messages"
SKU = {"type": "object", "properties": {"sku": {"type": "string", "maxLength": 8}}, "required": ["sku"]}
TOOL = {"name": "stock", "description": "Look it up.", "input_schema": SKU}
OTHER = {**TOOL, "name": "price"}
THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module")
def server(tiny: LlamaEndpoint) -> Iterator[Server]:
    with serving(tiny, max_tokens=400) as server:
        yield server


def body(content: Any = "How many?", **fields: Any) -> Json:
    return {"max_tokens": 400, "messages": [{"role": "user", "content": content}], **fields}


def say(server: Server, content: Any = "How many?", **fields: Any) -> Json:
    answer = server.post(PATH, body(content, **fields))
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def test_a_call_is_a_block_and_the_thought_stays_away_unless_it_is_asked_for() -> None:
    with serving(ScriptedEndpoint([CALL, CALL])) as server:
        plain = say(server, tools=[TOOL])
        thinking = say(server, tools=[TOOL], thinking=THINKING)
    assert (plain["type"], plain["role"], plain["stop_reason"]) == ("message", "assistant", "tool_use")
    (block,) = plain["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "stock", ARGUMENTS)
    assert [each["type"] for each in thinking["content"]] == ["thinking", "tool_use"]
    assert thinking["content"][0] == {"type": "thinking", "thinking": "I look it up.", "signature": ""}


def test_the_events_of_a_call_come_in_their_order() -> None:
    with serving(ScriptedEndpoint([CALL])) as server:
        found = events(server, PATH, body(tools=[TOOL], thinking=THINKING))
    assert types(found) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start = found[0]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    blocks = [each for each in found if each["type"] == "content_block_start"]
    assert [(each["index"], each["content_block"]["type"]) for each in blocks] == [
        (0, "thinking"),
        (1, "tool_use"),
    ]
    assert blocks[1]["content_block"]["input"] == {}
    deltas = [each["delta"] for each in found if each["type"] == "content_block_delta" and each["index"] == 1]
    assert json.loads("".join(each["partial_json"] for each in deltas)) == ARGUMENTS
    end = found[-2]
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert end["usage"]["input_tokens"] == start["usage"]["input_tokens"] > 0
    assert end["usage"]["output_tokens"] > 0


def test_the_events_of_a_text_come_in_their_order() -> None:
    with serving(ScriptedEndpoint(["Hello there.", ""])) as server:
        found = events(server, PATH, body())
        empty = events(server, PATH, body())
    assert types(found) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert found[1] == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert found[2]["delta"] == {"type": "text_delta", "text": "Hello there."}
    assert types(empty) == ["message_start", "message_delta", "message_stop"]


def test_a_stop_sequence_is_named() -> None:
    with serving(ScriptedEndpoint(["one two three"])) as server:
        message = say(server, stop_sequences=["three", " two"])
    assert message["content"] == [{"type": "text", "text": "one"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", " two")


def test_a_cut_call_is_none(server: Server) -> None:
    fields = {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 25}
    whole = say(server, **fields)
    assert (whole["stop_reason"], whole["content"]) == ("max_tokens", [])
    end = events(server, PATH, body(**fields))[-2]
    assert end["delta"]["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any"}, {"stock", "price"}),
        ({"type": "tool", "name": "price", "disable_parallel_tool_use": True}, {"price"}),
        ({"type": "none"}, set()),
    ],
)
def test_the_tool_choice_is_obeyed(server: Server, stream: bool, choice: Json, names: set[str]) -> None:
    for seed in range(4):
        fields = {"tools": [TOOL, OTHER], "tool_choice": choice, "seed": seed, "temperature": 1.0}
        if stream:
            found = events(server, PATH, body(**fields))
            blocks = [each["content_block"] for each in found if each["type"] == "content_block_start"]
            reason = found[-2]["delta"]["stop_reason"]
        else:
            message = say(server, **fields)
            blocks, reason = message["content"], message["stop_reason"]
        called = [each["name"] for each in blocks if each["type"] == "tool_use"]
        assert (reason == "tool_use") == bool(names)
        assert len(called) == bool(names)
        assert set(called) <= names


def test_a_history_of_blocks_reaches_the_model() -> None:
    endpoint = ScriptedEndpoint([FINISH])
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Both?", "cache_control": {"type": "ephemeral"}}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Both.", "signature": ""},
                {"type": "tool_use", "id": "a", "name": "stock", "input": {"sku": "A"}},
                {"type": "tool_use", "id": "b", "name": "stock", "input": {"sku": "B"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "b", "content": "no B", "is_error": True},
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "A has 1"}]},
                {"type": "text", "text": "Go on."},
            ],
        },
    ]
    system = [{"type": "text", "text": "Be brief."}]
    with serving(endpoint) as server:
        message = say(server, system=system, messages=messages, tools=[TOOL])
    assert message["content"] == [{"type": "text", "text": "There are 3."}]
    text = endpoint.prompts[0].text
    places = [text.index(each) for each in ("Be brief.", "Both?", '"A"', "A has 1", '"B"', "no B", "Go on.")]
    assert places == sorted(places)
    assert '"thought": "Both."' in text


def test_a_format_holds_the_answer(server: Server) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    message = say(server, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(message["content"][0]["text"])["n"] in (1, 2)


def test_tokens_are_counted_as_they_are_used(server: Server) -> None:
    request = body(tools=[TOOL], system="Be brief.")
    usage = server.post(PATH, request).json()["usage"]
    del request["max_tokens"]
    counted = server.post(f"{PATH}/count_tokens", request).json()
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_fields_that_are_not_known_are_left_alone() -> None:
    more = {
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "x"},
        "inference_geo": "eu",
        "mcp_servers": [],
        "container": None,
    }
    with serving(ScriptedEndpoint([CALL])) as server:
        assert say(server, tools=[TOOL], **more)["stop_reason"] == "tool_use"
        counted = {"messages": body()["messages"], "context_management": more["context_management"]}
        assert server.post(f"{PATH}/count_tokens", counted).status_code == 200


def test_a_failure_in_a_stream_is_its_last_event() -> None:
    with serving(ScriptedEndpoint([EndpointError("it broke")])) as server:
        found = events(server, PATH, body())
    assert types(found) == ["message_start", "error"]
    assert found[-1]["error"] == {"type": "api_error", "message": "it broke"}


@pytest.mark.parametrize(
    ("fields", "status", "kind", "said"),
    [
        ({"model": "claude"}, 404, "not_found_error", "claude"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, 400, "invalid_request_error", "messages/0/role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            400,
            "invalid_request_error",
            "'image'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "z"}]}]},
            400,
            "invalid_request_error",
            "'z'",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, 400, "invalid_request_error", "tools/0"),
        ({"tools": [{"name": "w"}]}, 400, "invalid_request_error", "input_schema"),
        ({"tools": [TOOL, TOOL]}, 400, "invalid_request_error", "'stock'"),
        (
            {"tools": [{"name": "w", "input_schema": {"type": "object", "properties": 3}}]},
            400,
            "invalid_request_error",
            "tool 'w'",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "zz"}},
            400,
            "invalid_request_error",
            "zz",
        ),
        ({"mcp_servers": [{"url": "https://x"}]}, 400, "invalid_request_error", "mcp_servers"),
        ({"container": {"skills": []}}, 400, "invalid_request_error", "container"),
        ({"stop_sequences": ["x"] * 99}, 422, "invalid_request_error", "stop"),
    ],
)
def test_errors_have_the_shape_of_the_dialect(
    server: Server, fields: Json, status: int, kind: str, said: str
) -> None:
    answer = failing(server, PATH, status, body(**fields))
    assert answer["type"] == "error"
    assert answer["error"]["type"] == kind
    assert said in answer["error"]["message"]


def test_errors_before_any_route_have_it_too(tiny: LlamaEndpoint) -> None:
    with serving(tiny, api_key="secret") as server:
        assert failing(server, PATH, 401, body())["error"]["type"] == "authentication_error"
        answer = server.post(PATH, body(), headers={"x-api-key": "secret"})
    assert answer.status_code == 200

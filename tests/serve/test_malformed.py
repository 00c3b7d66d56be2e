"""Bodies of every dialect with something wrong in them: the client's fault, and told in its dialect."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from localreact.endpoints.llama import LlamaEndpoint
from tests.fakes import wait_until
from tests.serve.server import Json, Server, asked, serving, tool

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
FORMAT = {"type": "json_schema", "name": "n", "schema": SCHEMA}
BODIES: dict[str, Json] = {
    "/v1/completions": {
        "prompt": ["a", "b"],
        "max_tokens": 4,
        "stop": ["x"],
        "n": 1,
        "seed": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "structured_outputs": {"json": SCHEMA},
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "?"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "a", "name": "stock", "arguments": '{"sku": "A"}'},
            {"type": "function_call_output", "call_id": "a", "output": "1"},
        ],
        "tools": [{"type": "function", **tool()["function"]}],
        "tool_choice": {"type": "function", "name": "stock"},
        "text": {"format": FORMAT},
        "max_output_tokens": 4,
        "temperature": 0.5,
    },
    "/v1/messages": {
        "max_tokens": 4,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": "?"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "a", "name": "w", "input": {"x": 1}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1"}]},
        ],
        "tools": [{"name": "w", "description": "w", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "w"},
        "thinking": {"type": "enabled", "budget_tokens": 9},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "stop_sequences": ["x"],
    },
    "/api/chat": {
        "model": "",
        "messages": [
            {"role": "user", "content": "?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "stock", "arguments": {}}}],
            },
            {"role": "tool", "content": "1", "tool_name": "stock"},
        ],
        "tools": [tool()],
        "format": SCHEMA,
        "options": {"temperature": 0.5, "num_predict": 4, "stop": ["x"], "seed": 1},
        "stream": False,
        "think": True,
    },
}
JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**40, 1.5, "", "x", "\x00", "日本" * 50, [], {}, [[]], [None], {"": None}),
    *({"type": "array"}, {"$ref": "#/nowhere"}, {"type": "object", "properties": {"a": {"$ref": "#"}}}),
    *({"enum": []}, {"pattern": "("}, {"not": {}}, {"minimum": 10**300}, False),
)


@pytest.fixture(scope="module")
def server(tiny: LlamaEndpoint) -> Iterator[Server]:
    with serving(tiny, max_tokens=4) as server:
        yield server


@pytest.mark.parametrize("path", BODIES)
def test_no_body_is_our_fault(server: Server, path: str) -> None:
    random_ = random.Random(path)
    statuses = set()
    for _ in range(150):
        body = copy.deepcopy(BODIES[path])
        for _ in range(random_.randint(1, 3)):
            _spoil(body, random_)
        answer = server.post(path, body)
        statuses.add(answer.status_code)
        assert answer.status_code < 500, (body, answer.text)
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert error if path == "/api/chat" else error["message"], answer.text
    assert {200, 400} <= statuses
    wait_until(lambda: server.idle)


@pytest.mark.parametrize("engine", ["llguidance", "gbnf"])
@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [{"k": 1}], "type": "object", "properties": {"k": {"$ref": "http://127.0.0.1:9/x"}}},
        {"not": {"$ref": "http://127.0.0.1:9/x"}},
        {"type": "string", "pattern": "^(?=.*a)(a+)+$"},
        {"type": "object", "patternProperties": {r"(a+)\1": {}}},
        {"type": "string", "pattern": "a{99999999999999999999}"},
    ],
)
def test_a_schema_that_reaches_out_or_takes_for_ever_is_refused(
    server: Server, engine: str, schema: Json
) -> None:
    answer = server.post("/v1/chat/completions", {**asked("?"), "engine": engine, "tools": [tool(k=schema)]})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith("tools/0/parameters")
    assert server.refused(400, "/v1/completions", prompt="a", json_schema=schema, engine=engine)["message"]


@pytest.mark.parametrize("engine", ["llguidance", "gbnf"])
def test_a_pattern_takes_no_longer_the_worse_it_is(server: Server, engine: str) -> None:
    schema = {"type": "string", "pattern": "^(a+)+$", "enum": ["a" * 60 + "!", "aaa"]}
    message = server.message(
        "?", tools=[tool(k=schema)], tool_choice="required", engine=engine, max_tokens=400
    )
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"k": "aaa"}


def _spoil(value: Any, random_: random.Random) -> None:
    """Something in it becomes something else, or goes."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = random_.choice(keys)
        if isinstance(value[key], dict | list) and random_.random() < 0.8:
            value = value[key]
            continue
        if random_.random() < 0.25:
            del value[key]
        else:
            value[key] = random_.choice(JUNK)
        return

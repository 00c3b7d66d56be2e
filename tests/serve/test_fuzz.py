"""No body makes the server fail or hang: what is wrong is the client's fault, said in one shape."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from tests.serve.server import Server, asked, tool

ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 1e308, -0.0, 1 << 70, "", "x", "\x00", "😀", [], {}, [None], {"": None}),
    *({"type": "object"}, {"type": "text"}, "auto", [[]], {"$ref": "#"}, ["a"] * 50, "y" * 5000),
]


def whole_body() -> dict[str, Any]:
    """A request with about everything that one may hold."""
    call = {"id": "c1", "type": "function", "function": {"name": "stock", "arguments": '{"sku": "A7"}'}}
    return {
        **asked("Hello", max_tokens=3, temperature=0.5, top_p=0.9, seed=1, n=1, stop=["zz"], stream=False),
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "How many?"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ],
        "tools": [tool(), tool("price", a={"anyOf": [{"type": "integer"}, {"enum": ["a"]}]})],
        "tool_choice": {"type": "function", "function": {"name": "stock"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "object"}},
        },
        "stream_options": {"include_usage": True},
        "protocol": "json",
        "reasoning_tokens": 0,
    }


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a value that something else could stand in."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, each in inside for place in places(each, (*at, key)))]


def odd(draw: random.Random) -> Any:
    return copy.deepcopy(draw.choice(ODD))


def mutated(body: Any, draw: random.Random) -> Any:
    for _ in range(draw.randint(1, 3)):
        place = draw.choice(places(body))
        if not place:
            body = odd(draw) if draw.random() < 0.2 else body
            continue
        holder = body
        for key in place[:-1]:
            holder = holder[key]
        match draw.randint(0, 3):
            case 0:
                del holder[place[-1]]
            case 1 if isinstance(holder, dict):
                holder[draw.choice(["zz", "type", "properties", "required", "pattern"])] = odd(draw)
            case _:
                holder[place[-1]] = odd(draw)
    return body


def cut_up(data: bytes, draw: random.Random) -> bytes:
    """Bytes that are hardly JSON any more."""
    at = draw.randrange(len(data))
    match draw.randint(0, 2):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + draw.randbytes(3) + data[at:]
    return data[:at] + draw.choice([b"\xff", b"\\u", b"{", b"]", b'"', b"\\ud800"]) + data[at + 1 :]


@pytest.mark.parametrize("seed", range(4))
def test_no_malformed_body_fails_the_server(served: Server, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(250):
        data = json.dumps(mutated(whole_body(), draw)).encode()
        if draw.random() < 0.2:
            data = cut_up(data, draw)
        answer = served.client.post("/v1/chat/completions", content=data, timeout=30)
        assert answer.status_code in (200, 400, 404, 422), (answer.status_code, data)
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert error["type"] in ("invalid_request_error", "not_found_error")
            assert error["message"]
    assert served.client.get("/health").status_code == 200


@pytest.mark.slow
def test_what_the_openapi_document_says_holds(served: Server) -> None:
    schema = schemathesis.openapi.from_url(str(served.client.base_url) + "/openapi.json")

    operations: list[Any] = list(schema.get_all_operations())
    assert len(operations) > 15
    for operation in operations:
        _hold(operation.ok().as_strategy())


def _hold(strategy: Any) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=strategy)
    def each(case: Any) -> None:
        answer = case.call(timeout=60)
        assert answer.status_code < 500, (case.as_curl_command(), answer.text)

    each()

"""A tool choice is obeyed, always: by a model of random weights, and by the real small one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from localreact.endpoints.llama import LlamaEndpoint
from tests.serve.server import Json, Server, asked, delta_texts, serving, streamed_calls, tool

MODES = ("auto", "none", "required", "named")
PROTOCOLS = ("json", "text", "call")
TOOLS: list[Json] = [
    tool("stock"),
    tool("price", sku={"type": "string", "maxLength": 12}, net={"type": "boolean"}),
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {each["function"]["name"]: each["function"].get("parameters", {}) for each in TOOLS}
QUESTION = "How many of article A7 are left in stock?"
CELLS = [(mode, protocol, stream) for mode in MODES for protocol in PROTOCOLS for stream in (False, True)]


def reply(server: Server, stream: bool, body: Json) -> tuple[str, Sequence[Json], str]:
    """Content, calls and finish reason of a request that has to be served."""
    if stream:
        chunks = server.chunks(QUESTION, **body)
        last = chunks[-1]["choices"][0]["finish_reason"]
        return delta_texts(chunks, "content"), streamed_calls(chunks), last
    choice = server.chat(QUESTION, **body)["choices"][0]
    calls = [each["function"] for each in choice["message"].get("tool_calls", ())]
    return choice["message"]["content"] or "", calls, choice["finish_reason"]


def check(server: Server, mode: str, protocol: str, stream: bool, seed: int, **more: Any) -> str:
    """The finish reason of one reply that obeys."""
    named: Json = {"type": "function", "function": {"name": "price"}}
    body = {"protocol": protocol, "tools": TOOLS, "seed": seed, **more}
    content, calls, reason = reply(
        server, stream, {**body, "tool_choice": named if mode == "named" else mode}
    )
    if reason == "length":
        return reason
    assert reason == ("tool_calls" if calls else "stop")
    assert len(calls) == (1 if mode in ("required", "named") else 0 if mode == "none" else len(calls))
    for call in calls:
        assert not content
        Draft202012Validator(SCHEMAS[call["name"]]).validate(json.loads(call["arguments"]))
        assert mode != "named" or call["name"] == "price"
    assert calls or content
    return reason


def table(server: Server, requests: int, **more: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        for mode, protocol, stream in CELLS:
            cell = partial(check, server, mode, protocol, stream, **more)
            reasons = list(pool.map(cell, range(requests)))
            assert reasons.count("length") <= requests // 4, (mode, protocol, stream)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_choice_is_obeyed(served: Server, mode: str, protocol: str) -> None:
    for seed in range(3):
        check(served, mode, protocol, seed == 1, seed, temperature=1.0, max_tokens=1000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_choice_is_obeyed_over_two_hundred_requests_a_cell(served: Server) -> None:
    table(served, 200, temperature=1.0, max_tokens=1500)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_choice_is_obeyed_by_the_real_model(smollm2: LlamaEndpoint) -> None:
    with serving(smollm2, queue=100) as server:
        table(server, 20, temperature=0.7, max_tokens=300)


def test_a_choice_of_a_tool_that_is_not_there_is_refused(served: Server) -> None:
    choice = {"type": "function", "function": {"name": "zz"}}
    error = served.refused(400, **asked("x", tools=TOOLS, tool_choice=choice))
    assert "'zz'" in error["message"]
    assert "stock" in error["message"]

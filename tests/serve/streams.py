"""What the other dialects' tests let a model write, and how they read their streams."""

from __future__ import annotations

import json
from typing import Any

from tests.serve.server import Json, Server

ARGUMENTS = {"sku": "Ä\n7"}
CALL = json.dumps(
    {"thought": "I look it up.", "type": "tool_call", "tool": "stock", "arguments": ARGUMENTS},
    ensure_ascii=False,
)
FINISH = json.dumps({"thought": "I know that.", "type": "finish", "answer": "There are 3."})


def events(server: Server, path: str, body: Json) -> list[Json]:
    """Server-sent events that are named by their type."""
    with server.client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        blocks = "".join(f"{line}\n" for line in answer.iter_lines()).strip().split("\n\n")
    found = []
    for block in blocks:
        name, data = block.split("\n")
        event: Json = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def lines(server: Server, path: str, body: Json) -> list[Json]:
    with server.client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.iter_lines()]


def types(found: list[Json]) -> list[str]:
    """The types of events, each of a row of the same once."""
    names = [each["type"] for each in found]
    return [name for name, before in zip(names, ["", *names], strict=False) if name != before]


def joined(found: list[Json], kind: str, field: str = "delta") -> str:
    return "".join(each[field] for each in found if each["type"] == kind)


def failing(server: Server, path: str, status: int, body: Any) -> Json:
    answer = server.post(path, body)
    assert answer.status_code == status, answer.text
    error: Json = answer.json()
    return error

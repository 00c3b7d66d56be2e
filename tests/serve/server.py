"""A real server (uvicorn on a thread, a port of its own) over a given endpoint."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import httpx2
import uvicorn

from localreact.endpoints.base import Endpoint
from localreact.endpoints.llama import LlamaEndpoint
from localreact.serve.app import create_app
from localreact.serve.desk import Desk
from localreact.serve.settings import Settings
from localreact.serve.state import State
from tests.fakes import wait_until

Json = dict[str, Any]


@dataclass
class Server:
    state: State
    client: httpx2.Client

    def chat(self, text: str = "Hello", /, **fields: Any) -> Json:
        """The answer to a question, which has to be served."""
        answer = self.post("/v1/chat/completions", asked(text, **fields))
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def message(self, text: str = "Hello", /, **fields: Any) -> Json:
        found: Json = self.chat(text, **fields)["choices"][0]["message"]
        return found

    def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        return self.client.post(path, json=body, **options)

    def leave(self, path: str, body: Any, then: Callable[[], bool]) -> None:
        """Ask, and hang up as soon as something is so, whatever has arrived by then."""
        base = self.client.base_url
        with closing(HTTPConnection(base.host, base.port, timeout=30)) as connection:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            wait_until(then)

    def refused(self, status: int, path: str = "/v1/chat/completions", **body: Any) -> Json:
        answer = self.post(path, body)
        assert answer.status_code == status, answer.text
        found: Json = answer.json()["error"]
        return found

    def chunks(self, text: str = "Hello", /, **fields: Any) -> list[Json]:
        """The events of a stream, which ends as it should."""
        with self.client.stream(
            "POST", "/v1/chat/completions", json=asked(text, stream=True, **fields)
        ) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in answer.iter_lines() if line]
        assert all(line.startswith("data: ") for line in lines)
        data = [line.removeprefix("data: ") for line in lines]
        if data[-1] == "[DONE]":
            data.pop()
        return [json.loads(each) for each in data]

    @property
    def idle(self) -> bool:
        places = self.state.desk.places
        return places.active == places.waiting == 0


def asked(text: str, /, **fields: Any) -> Json:
    return {"messages": [{"role": "user", "content": text}], **fields}


def tool(name: str = "stock", **properties: Mapping[str, Any]) -> Json:
    properties = properties or {"sku": {"type": "string", "maxLength": 8}}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": f"Look up the {name}.", "parameters": parameters}
    return {"type": "function", "function": function}


@contextmanager
def serving(endpoint: Endpoint, **settings: Any) -> Iterator[Server]:
    """The endpoint stays open."""
    chosen = Settings(**settings)
    state = State(chosen)
    state.loaded = Desk(endpoint, chosen, state.metrics)
    try:
        with running(state) as server:
            yield server
    finally:
        if isinstance(endpoint, LlamaEndpoint):  # others use it otherwise
            endpoint.keep_histories(0)


@contextmanager
def running(state: State) -> Iterator[Server]:
    app = create_app(state)
    config = uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, 30)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield Server(state, client)
    finally:
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive()


def delta_texts(chunks: list[Json], field: str, choice: int = 0) -> str:
    """What the deltas of a field add up to."""
    return "".join(
        each["delta"].get(field) or ""
        for chunk in chunks
        for each in chunk["choices"]
        if each["index"] == choice
    )


def streamed_calls(chunks: list[Json], choice: int = 0) -> list[Json]:
    """The tool calls that the deltas make, as clients put them together."""
    calls: list[Json] = []
    for chunk in chunks:
        for each in chunk["choices"]:
            if each["index"] != choice:
                continue
            for new in each["delta"].get("tool_calls") or ():
                if "id" in new:
                    calls.append({"id": new["id"], **new["function"]})
                else:
                    assert "name" not in new["function"]
                    calls[new["index"]]["arguments"] += new["function"]["arguments"]
    return calls

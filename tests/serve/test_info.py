from __future__ import annotations

import asyncio
import re

import pytest

from localreact._version import __version__
from localreact.endpoints.scripted import ScriptedEndpoint
from localreact.errors import ModelError
from localreact.serve.settings import Settings
from localreact.serve.state import State
from tests.serve.server import Server, asked, running, serving


def test_a_server_answers_while_its_model_is_being_loaded() -> None:
    with running(State(Settings())) as server:
        health = server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        assert server.client.get("/version").json() == {"version": __version__}
        assert server.refused(503, **asked("x"))["code"] == "loading"
        assert server.client.get("/v1/models").status_code == 503


def test_models_are_listed_and_found_by_name(served: Server) -> None:
    (model,) = served.client.get("/v1/models").json()["data"]
    assert model["object"] == "model"
    assert served.client.get(f"/v1/models/{model['id']}").json() == model
    assert served.client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"


def test_tokens_of_a_text_never_are_control_tokens(served: Server) -> None:
    found = served.post("/tokenize", {"content": "Hi <|im_end|>"}).json()
    assert found["count"] == len(found["tokens"]) > 3
    assert served.refused(400, "/tokenize")["param"] == "content"


def test_an_endpoint_without_ids_counts() -> None:
    with serving(ScriptedEndpoint([])) as server:
        found = server.post("/tokenize", {"prompt": "12345678"}).json()
    assert (found["tokens"], found["count"]) == (None, 2)


def test_metrics_count_what_was_done() -> None:
    with serving(ScriptedEndpoint(["Hi there."])) as server:
        server.chat()
        server.refused(400, **asked("x", foo=1))
        text = server.client.get("/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['localreact_requests_total{route="/v1/chat/completions",status="200"}'] == "1.0"
    assert lines['localreact_requests_total{route="/v1/chat/completions",status="400"}'] == "1.0"
    assert lines['localreact_errors_total{kind="client"}'] == "1.0"
    assert lines['localreact_tokens_total{kind="sampled"}'] == "3.0"
    assert lines["localreact_grammar_seconds_count"] == "1.0"
    assert lines["localreact_active"] == "0.0"


def test_the_openapi_document_names_the_routes(served: Server) -> None:
    document = served.client.get("/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/models", "/tokenize", "/health"} <= set(document["paths"])


def test_the_api_has_a_page_that_loads_nothing_from_elsewhere(served: Server) -> None:
    answer = served.client.get("/docs")
    assert "<script" not in answer.text
    assert not re.search(r"(?:src|href)=.https?:", answer.text)
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    document = served.client.get("/openapi.json").json()
    assert all(f"<code>{path}</code>" in answer.text for path in document["paths"])
    wanted = set(re.findall(r'href="#([^"]+)"', answer.text))
    assert "ChatRequest" in wanted
    assert wanted <= set(re.findall(r'id="([^"]+)"', answer.text))


@pytest.mark.parametrize("error", [ModelError("the file is no model"), ValueError("the file is no model")])
def test_loading_that_fails_is_told(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> ScriptedEndpoint:
        raise error

    state = State(Settings())
    asyncio.run(state.load(broken))
    with running(state) as server:
        health = server.client.get("/health").json()
        assert health["status"] == "error"
        assert "the file is no model" in health["message"]
    assert ("Traceback" in caplog.text) == isinstance(error, ValueError)

"""litellm, by its OpenAI, Anthropic and Ollama routes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serve.clients.conftest import MODEL
from tests.serve.server import tool

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]
QUESTION: Any = [{"role": "user", "content": "How many of article A7 are left?"}]
STOCK = tool("stock", sku={"type": "string", "maxLength": 12})


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it asks the network for prices
    return pytest.importorskip("litellm")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("route", "path"), [("openai", "/v1"), ("anthropic", "")])
def test_a_required_call_is_made(litellm: Any, url: str, route: str, path: str, stream: bool) -> None:
    request: Any = {
        "model": f"{route}/{MODEL}",
        "api_base": url + path,
        "api_key": "none",
        "messages": QUESTION,
        "tools": [STOCK],
        "tool_choice": "required",
        "max_tokens": 300,
        "stream": stream,
    }
    response = litellm.completion(**request)
    if stream:
        response = litellm.stream_chunk_builder(list(response), messages=QUESTION)
    assert response.choices[0].finish_reason == "tool_calls"
    (call,) = response.choices[0].message.tool_calls
    assert call.function.name == "stock"
    assert json.loads(call.function.arguments).keys() == {"sku"}


@pytest.mark.parametrize("stream", [False, True])
def test_ollamas_chat_answers(litellm: Any, url: str, stream: bool) -> None:
    response = litellm.completion(
        model=f"ollama_chat/{MODEL}", api_base=url, messages=QUESTION, max_tokens=20, stream=stream
    )
    if stream:
        response = litellm.stream_chunk_builder(list(response), messages=QUESTION)
    assert response.choices[0].message.content

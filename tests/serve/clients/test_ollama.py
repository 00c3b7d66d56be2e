"""Ollama's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.clients.conftest import MODEL

ollama = pytest.importorskip("ollama")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with ollama.Client(host=url) as client:
        yield client


def stock(sku: str) -> int:
    """Look up how many of an article are left.

    Args:
        sku: The article's number.
    """
    return 31


QUESTION: Any = [{"role": "user", "content": "Look up how many of A7 are left."}]


def test_a_function_of_pythons_is_a_tool(client: Any) -> None:
    answer = client.chat(model=MODEL, messages=QUESTION, tools=[stock], think=True)
    assert answer.done
    assert answer.eval_count > 0
    assert answer.total_duration >= answer.eval_duration > 0
    assert answer.message.thinking
    assert answer.message.tool_calls, answer.message
    (call,) = answer.message.tool_calls
    assert (call.function.name, call.function.arguments.keys()) == ("stock", {"sku"})
    history = [
        *QUESTION,
        answer.message,
        {"role": "tool", "tool_name": "stock", "content": str(stock(**call.function.arguments))},
    ]
    parts = list(client.chat(model=MODEL, messages=history, tools=[stock], stream=True))
    assert parts[-1].done
    said = "".join(part.message.content or "" for part in parts)
    called = [each for part in parts for each in part.message.tool_calls or ()]
    assert bool(said) != bool(called)


def test_a_format_holds_the_answer(client: Any) -> None:
    schema = {"type": "object", "properties": {"stars": {"enum": [1, 2, 3]}}, "required": ["stars"]}
    answer = client.chat(
        model=MODEL, messages=[{"role": "user", "content": "How was the film?"}], format=schema
    )
    assert json.loads(answer.message.content)["stars"] in (1, 2, 3)


def test_models_are_listed_and_others_not_found(client: Any) -> None:
    (model,) = client.list().models
    assert (
        client.chat(model=model.model, messages=QUESTION, options={"num_predict": 2}).done_reason == "length"
    )
    with pytest.raises(ollama.ResponseError) as missing:
        client.chat(model="llama3", messages=QUESTION)
    assert missing.value.status_code == 404

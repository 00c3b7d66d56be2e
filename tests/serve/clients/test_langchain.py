"""LangChain's ChatOpenAI and its agent."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.serve.clients.conftest import MODEL

agents = pytest.importorskip("langchain.agents")
openai = pytest.importorskip("langchain_openai")
messages = pytest.importorskip("langchain_core.messages")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]


class Verdict(BaseModel):
    """What one thinks of a film."""

    mood: Literal["good", "bad"]


def stock(sku: Literal["A7", "B2"]) -> str:
    """Look up how many of an article are left."""
    return f"There are 31 of {sku} left."


@pytest.fixture
def chat(url: str) -> Any:
    return openai.ChatOpenAI(
        model=MODEL, base_url=f"{url}/v1", api_key="none", temperature=0, max_retries=0, max_tokens=300
    )


QUESTION = "Look up how many of A7 are left."


@pytest.mark.parametrize("stream", [False, True])
def test_a_bound_tool_is_called(chat: Any, stream: bool) -> None:
    bound = chat.bind_tools([stock], tool_choice="required")
    if stream:
        parts = list(bound.stream(QUESTION))
        message = parts[0]
        for part in parts[1:]:
            message += part
    else:
        message = bound.invoke(QUESTION)
    (call,) = message.tool_calls
    assert call["name"] == "stock"
    assert call["args"]["sku"] in ("A7", "B2")
    assert message.invalid_tool_calls == []
    assert message.content == ""


def test_structured_output_is_a_model_of_pydantics(chat: Any) -> None:
    for method in ("json_schema", "function_calling"):
        structured = chat.with_structured_output(Verdict, method=method)
        assert isinstance(structured.invoke("How was the film?"), Verdict)


def test_the_agent_calls_the_tool_and_answers(chat: Any) -> None:
    agent = agents.create_agent(chat, [stock])
    found = agent.invoke({"messages": [("user", QUESTION)]}, {"recursion_limit": 12})
    kinds = [type(each) for each in found["messages"]]
    assert messages.ToolMessage in kinds, found
    results = [each for each in found["messages"] if isinstance(each, messages.ToolMessage)]
    assert all(each.content.endswith("left.") for each in results)
    assert kinds[-1] is messages.AIMessage
    assert found["messages"][-1].content


def test_responses_are_spoken_too(url: str) -> None:
    chat = openai.ChatOpenAI(
        model=MODEL, base_url=f"{url}/v1", api_key="none", use_responses_api=True, max_retries=0
    )
    message = chat.bind_tools([stock], tool_choice="stock").invoke(QUESTION)
    (call,) = message.tool_calls
    assert call["args"]["sku"] in ("A7", "B2")
    history = [("user", QUESTION), message, messages.ToolMessage("There are 31.", tool_call_id=call["id"])]
    assert chat.invoke(history).text

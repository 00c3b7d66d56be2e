"""pydantic-ai's Agent."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import httpx2
import pytest
from pydantic import BaseModel

from tests.serve.clients.conftest import MODEL

pydantic_ai = pytest.importorskip("pydantic_ai")
models = pytest.importorskip("pydantic_ai.models.openai")
providers = pytest.importorskip("pydantic_ai.providers.openai")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]


class Verdict(BaseModel):
    """What one thinks of a film."""

    mood: Literal["good", "bad"]


@pytest.fixture(params=["chat", "responses"])
def model(request: pytest.FixtureRequest, url: str) -> Any:
    # No connection is left open for another event loop to find.
    http = httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))
    provider = providers.OpenAIProvider(base_url=f"{url}/v1", api_key="none", http_client=http)
    if request.param == "chat":
        return models.OpenAIChatModel(MODEL, provider=provider)
    return models.OpenAIResponsesModel(MODEL, provider=provider)


SETTINGS = {"temperature": 0.0, "max_tokens": 300}


def test_an_output_type_is_written_by_a_call(model: Any) -> None:
    """The way that doesn't work with servers that don't enforce `tool_choice`."""
    agent = pydantic_ai.Agent(model, output_type=Verdict, model_settings=SETTINGS)
    assert isinstance(asyncio.run(agent.run("How was the film?")).output, Verdict)


def test_a_tool_is_called_and_its_result_goes_back(model: Any) -> None:
    asked = []
    agent = pydantic_ai.Agent(model, model_settings=SETTINGS)

    @agent.tool_plain  # type: ignore[untyped-decorator]
    def stock(sku: Literal["A7", "B2"]) -> str:
        """Look up how many of an article are left."""
        asked.append(sku)
        return f"There are 31 of {sku} left."

    limits = pydantic_ai.UsageLimits(request_limit=6)
    result = asyncio.run(agent.run("Look up how many of A7 are left.", usage_limits=limits))
    assert asked
    assert set(asked) <= {"A7", "B2"}
    assert result.output
    assert result.usage.output_tokens > 0


def test_text_comes_in_a_stream(model: Any) -> None:
    agent = pydantic_ai.Agent(model, model_settings={**SETTINGS, "max_tokens": 5})
    whole = asyncio.run(agent.run("Say hello.")).output

    async def streamed() -> str:
        async with agent.run_stream("Say hello.") as result:
            text: str = await result.get_output()
            return text

    assert asyncio.run(streamed()) == whole

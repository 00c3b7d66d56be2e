"""smolagents' ToolCallingAgent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.clients.conftest import MODEL

smolagents = pytest.importorskip("smolagents")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("stream", [False, True])
def test_every_step_of_the_agent_is_a_call_that_it_can_read(url: str, stream: bool) -> None:
    asked = []

    @smolagents.tool  # type: ignore[untyped-decorator]
    def stock(sku: str) -> str:
        """Look up how many of an article are left.

        Args:
            sku: The article's number.
        """
        asked.append(sku)
        return f"There are 31 of {sku} left."

    model = smolagents.OpenAIModel(
        model_id=MODEL, api_base=f"{url}/v1", api_key="none", max_tokens=300, temperature=0
    )
    agent: Any = smolagents.ToolCallingAgent(
        tools=[stock], model=model, max_steps=4, verbosity_level=0, stream_outputs=stream
    )
    result = agent.run("Call the tool stock for the article A7, then give the final answer.")
    assert result
    steps = [each for each in agent.memory.steps if hasattr(each, "tool_calls")]
    assert steps
    for step in steps:
        assert not isinstance(step.error, smolagents.AgentParsingError), step.error
        assert [call.name in ("stock", "final_answer") for call in step.tool_calls] == [True]

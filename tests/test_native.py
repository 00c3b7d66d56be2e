"""The server's own tool calling, and what happens where it isn't good enough."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from localreact import Agent
from localreact.endpoints import chat_api, probe
from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import UsageError
from localreact.tools.decorator import Tool, tool
from localreact.trace.events import ProtocolChanged, RunStarted, ToolEnded
from localreact.trace.jsonl import read_trace
from tests.fakes import GRAMMARS, Fake, serving

CALL = (
    '{"thought": "I should look it up.", "type": "tool_call", "tool": "stock", "arguments": {"sku": "nut"}}'
)
FINISH = '{"thought": "The result is there.", "type": "finish", "answer": "3"}'
KINDS = list(GRAMMARS)


@pytest.fixture(autouse=True)
def _forget_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_verdicts", {})
    monkeypatch.setattr(chat_api, "_verdicts", {})


def calls(*each: tuple[str, Any], content: str | None = None) -> dict[str, Any]:
    return {
        "content": content,
        "tool_calls": [
            {
                "id": f"c{number}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": given if isinstance(given, str) else json.dumps(given),
                },
            }
            for number, (name, given) in enumerate(each)
        ],
    }


def says(text: str) -> dict[str, Any]:
    return {"content": text}


ABLE = calls(("look_up_code", {"person": "Ada"}))
"""What a model that can call tools says when it is asked to."""


@pytest.fixture
def executed() -> list[str]:
    return []


@pytest.fixture
def counting(executed: list[str]) -> Tool:
    @tool
    def stock(sku: str) -> int:
        """How many of an article are left."""
        executed.append(sku)
        return 3

    return stock


@pytest.mark.parametrize("kind", KINDS)
def test_all_calls_of_one_reply_are_executed_in_order_and_the_replies_counted(
    kind: str, counting: Tool, executed: list[str], tmp_path: Path
) -> None:
    trace = tmp_path / "run.jsonl"
    two = calls(("stock", {"sku": "bolt"}), ("stock", {"sku": "nut"}), content="Both.")
    with (
        serving(Fake(kind, chat=[two, says("6 in all")], enforces=GRAMMARS[kind])) as fake,
        Agent(fake.address, [counting], protocol="native", trace=trace) as agent,
    ):
        run = agent.run("How many bolts and nuts?")
    assert executed == ["bolt", "nut"]
    assert (run.status, run.answer, len(run.steps), run.round_trips) == ("finished", "6 in all", 3, 2)
    assert run.usage.sampled == 20
    events = read_trace(trace)
    assert (events[0]["protocol"], events[0]["enforced"]) == ("native/1", "")
    assert "own tool calling" in events[0]["level"]
    ids = [event["call_id"] for event in events if event["event"] == "ToolStarted"]
    assert len(set(ids)) == 2
    results = [message for message in fake.chats[-1]["messages"] if message["role"] == "tool"]
    assert [(each["tool_call_id"], each["content"]) for each in results] == [("c0", "3"), ("c1", "3")]


def test_budgets_hold_for_calls_not_only_for_replies(counting: Tool, executed: list[str]) -> None:
    many = calls(*[("stock", {"sku": str(number)}) for number in range(9)])
    with (
        serving(Fake("openai", chat=[many, says("3")])) as fake,
        Agent(fake.address, [counting], protocol="native", max_steps=4) as agent,
    ):
        run = agent.run("How many?")
    assert executed == ["0", "1", "2"]
    assert run.status == "max_steps"


def test_what_is_wrong_with_a_call_is_told_and_nothing_else_happens(
    counting: Tool, executed: list[str]
) -> None:
    bad = calls(("stock", "{broken"), ("hammer", {}), ("stock", {"sku": 3}))
    good = calls(("stock", {"sku": "bolt"}))
    with (
        serving(Fake("openai", chat=[bad, good, says("3")])) as fake,
        Agent(fake.address, [counting], protocol="native") as agent,
    ):
        run = agent.run("How many?")
    assert (run.status, executed) == ("finished", ["bolt"])
    told = [message["content"] for message in fake.chats[1]["messages"] if message["role"] == "tool"]
    assert "not one JSON object" in told[0]
    assert "no tool 'hammer'" in told[1]
    assert "3" in told[2]


def test_no_answer_without_evidence_and_an_honest_way_out(counting: Tool) -> None:
    looked = calls(("stock", {"sku": "bolt"}))
    gone = calls(("insufficient", {"missing": "the price"}))
    with (
        serving(Fake("openai", chat=[says("From memory: 9"), gone, looked, gone])) as fake,
        Agent(fake.address, [counting], protocol="native") as agent,
    ):
        run = agent.run("What does a bolt cost?")
    assert (run.status, run.missing) == ("insufficient", "the price")
    assert [step.observation.ok for step in run.steps if step.observation] == [False, False, True]


def test_a_server_that_refuses_tools_ends_a_native_run_with_what_it_said(counting: Tool) -> None:
    with (
        serving(Fake("ollama", refuses=("tools",))) as fake,
        Agent(fake.address, [counting], protocol="native") as agent,
    ):
        run = agent.run("How many?")
    assert run.status == "endpoint_error"
    assert "does not support tools" in run.reason


def test_auto_takes_native_where_it_works(counting: Tool, executed: list[str]) -> None:
    chat = [ABLE, calls(("stock", {"sku": "nut"})), says("3")]
    with (
        serving(Fake("openai", chat=chat)) as fake,
        Agent(fake.address, [counting], protocol="auto") as agent,
    ):
        assert agent.protocol_version == "native/1"
        assert agent.run("How many nuts?").answer == "3"
    assert executed == ["nut"]


@pytest.mark.parametrize(
    ("chat", "refuses", "why"),
    [
        ([], ("tools",), "refuses tools: .*does not support tools"),
        ([says("The code of Ada is 42.")], (), "ignores tools: it said 'The code"),
        ([calls(("look_up_code", "Ada"))], (), "breaks the format"),
        ([calls(("other", {"person": "Ada"}))], (), "breaks the format"),
    ],
)
@pytest.mark.parametrize("kind", ["openai", "llama-server", "ollama"])
def test_auto_goes_over_to_the_constrained_protocol_and_remembers_it(
    kind: str, chat: list[dict[str, Any]], refuses: tuple[str, ...], why: str, counting: Tool
) -> None:
    fake = Fake(kind, [CALL, FINISH] * 2, enforces=GRAMMARS[kind], chat=chat, refuses=refuses)
    with serving(fake):
        for _ in range(2):
            with Agent(fake.address, [counting], protocol="auto") as agent:
                assert agent.protocol_version == "react-json/1"
                assert any(re.search(why, each) for each in agent.endpoint.notices)
                running = agent.stream("How many nuts?")
                started = next(event for event in running if isinstance(event, RunStarted))
                assert started.enforced == ("json_schema" if kind == "ollama" else "gbnf")
                list(running)
                assert running.outcome.answer == "3"
        assert len(fake.chats) == 1


def test_native_that_breaks_in_the_middle_is_left_and_nothing_is_executed_twice(
    counting: Tool, executed: list[str], tmp_path: Path
) -> None:
    broken = calls(("stock", "{broken"))
    trace = tmp_path / "run.jsonl"
    chat = [ABLE, calls(("stock", {"sku": "bolt"})), broken, broken]
    fake = Fake("openai", [CALL, FINISH], enforces=GRAMMARS["openai"], chat=chat)
    with serving(fake), Agent(fake.address, [counting], protocol="auto", trace=trace) as agent:
        running = agent.stream("How many bolts and nuts?")
        events = list(running)
        changed = [event for event in events if isinstance(event, ProtocolChanged)]
        assert [each.protocol for each in changed] == ["react-json/1"]
        assert "breaks the format" in changed[0].reason
        assert agent.protocol_version == "react-json/1"  # for the next runs too
    assert (running.outcome.status, running.outcome.answer) == ("finished", "3")
    assert executed == ["bolt", "nut"]
    assert len([event for event in events if isinstance(event, ToolEnded)]) == 2
    prompt = fake.prompt(fake.completions[0])
    assert '"arguments": {"sku": "bolt"}' in prompt  # what was done natively isn't forgotten
    assert '{"type": "tool_result", "result": "3"}' in prompt
    assert read_trace(trace)[-1]["round_trips"] == 5


def test_a_typed_answer(counting: Tool) -> None:
    chat = [calls(("stock", {"sku": "bolt"})), says("three"), says("3")]
    with (
        serving(Fake("openai", chat=chat)) as fake,
        Agent(fake.address, [counting], protocol="native") as agent,
    ):
        run = agent.run("How many bolts?", answer=int)
    assert (run.status, run.value) == ("finished", 3)


def test_native_is_for_servers(tiny: LlamaEndpoint, counting: Tool) -> None:
    with pytest.raises(UsageError, match="no tool calling of its own"):
        Agent(tiny, [counting], protocol="native")
    assert Agent(tiny, [counting], protocol="auto").protocol_version == "react-json/1"

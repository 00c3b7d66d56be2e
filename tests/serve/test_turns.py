"""From an Ask to parts, without HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from localreact.endpoints.base import Endpoint
from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.scripted import ScriptedEndpoint
from localreact.errors import ContextOverflowError, GrammarError, ProtocolError
from localreact.serve.ask import Ask, Called, ClientError, Message, ToolChoice
from localreact.serve.parts import ArgumentsDelta, CallStarted, ContentDelta, Ended, Part, ReasoningDelta
from localreact.serve.replies import Prepared
from localreact.serve.turns import Turns
from localreact.types import Sampling, ToolSpec, TurnGrammar

SKU = {
    "type": "object",
    "properties": {"sku": {"type": "string", "maxLength": 8}},
    "required": ["sku"],
    "additionalProperties": False,
}
STOCK = ToolSpec("stock", "How many of an article are left.", SKU)
PRICE = ToolSpec("price", "What an article costs.", SKU)
HELLO = (Message("user", "Hello"),)


def turns_of(endpoint: Endpoint, max_tokens: int = 400) -> Turns:
    return Turns(lambda engine: endpoint, max_tokens)


def written(turns: Turns, prepared: Prepared, choice: int = 0) -> tuple[list[Part], Ended]:
    parts = list(turns.write(prepared, choice, time.monotonic() + 60, threading.Event()))
    *before, ended = parts
    assert isinstance(ended, Ended)
    return before, ended


def replies(endpoint: Endpoint, ask: Ask) -> Ended:
    turns = turns_of(endpoint)
    return written(turns, turns.prepare(ask))[1]


def added(parts: Iterable[Part], kind: type[ReasoningDelta | ContentDelta | ArgumentsDelta]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    protocol=st.sampled_from(["json", "text", "call", "bracket"]),
    choice=st.sampled_from(["auto", "none", "required", "named"]),
    structured=st.booleans(),
)
def test_deltas_add_up_to_the_whole_whatever_the_protocol_and_the_choice(
    tiny: LlamaEndpoint, seed: int, protocol: str, choice: ToolChoice, structured: bool
) -> None:
    ask = Ask(
        HELLO,
        tools=(STOCK, PRICE),
        tool_choice=choice,
        tool="price" if choice == "named" else "",
        answer={"type": "integer"} if structured and protocol != "bracket" else None,
        protocol=protocol,
        sampling=Sampling(temperature=1.0, seed=seed),
    )
    turns = turns_of(tiny, 600)
    parts, ended = written(turns, turns.prepare(ask))
    assert added(parts, ReasoningDelta) == ended.reasoning
    assert added(parts, ContentDelta) == ended.content
    started = [part for part in parts if isinstance(part, CallStarted)]
    if ended.finish_reason == "tool_calls":
        assert ended.call is not None
        assert choice != "none"
        assert not ended.content
        assert [(each.id, each.name) for each in started] == [(ended.call.id, ended.call.name)]
        assert added(parts, ArgumentsDelta) == ended.call.arguments
        Draft202012Validator(SKU).validate(json.loads(ended.call.arguments))
        assert ended.call.name == "price" or choice != "named"
    else:
        assert ended.call is None
        if ended.finish_reason == "stop":
            assert choice in ("auto", "none")
            assert not started
            assert not ask.answer or isinstance(json.loads(ended.content), int)


def test_a_reply_without_tools_is_plain_text_by_the_chat_template() -> None:
    endpoint = ScriptedEndpoint(["Hello there."])
    ended = replies(endpoint, Ask((Message("system", "Be kind."), *HELLO)))
    assert (ended.finish_reason, ended.content, ended.call) == ("stop", "Hello there.", None)
    assert endpoint.prompts[0].text == "Be kind.\n\nUser: Hello\n\nAssistant: "


def test_reasoning_of_a_plain_reply_is_set_apart() -> None:
    ended = replies(ScriptedEndpoint(["<think>hm</think>Yes."]), Ask(HELLO))
    assert (ended.reasoning, ended.content) == ("hm", "Yes.")


def test_a_stop_string_ends_the_content_and_is_named() -> None:
    ended = replies(ScriptedEndpoint(["one two three"]), Ask(HELLO, stops=("two",)))
    assert (ended.content, ended.finish_reason) == ("one ", "stop")


def test_a_stop_string_ends_the_answer_of_a_turn_and_leaves_calls_alone() -> None:
    turn = {"thought": "I know that already.", "type": "finish", "answer": "one two three"}
    ended = replies(ScriptedEndpoint([json.dumps(turn)]), Ask(HELLO, tools=(STOCK,), stops=("two",)))
    assert (ended.content, ended.finish_reason, ended.stopped_at) == ("one ", "stop", "two")
    call = {"thought": "I look it up.", "type": "tool_call", "tool": "stock", "arguments": {"sku": "two"}}
    ended = replies(ScriptedEndpoint([json.dumps(call)]), Ask(HELLO, tools=(STOCK,), stops=("two",)))
    assert ended.call == Called(ended.call.id if ended.call else "", "stock", '{"sku": "two"}')


def test_a_stop_string_ends_a_live_answer_of_a_real_model(tiny: LlamaEndpoint) -> None:
    ask = Ask(HELLO, tools=(STOCK,), tool_choice="none", sampling=Sampling(temperature=1.0, seed=4))
    whole = replies(tiny, ask)
    stop = whole.content[8:10]
    cut = replies(
        tiny,
        Ask(HELLO, tools=(STOCK,), tool_choice="none", sampling=ask.sampling, stops=(stop,)),
    )
    assert cut.content == whole.content.partition(stop)[0]
    assert (cut.finish_reason, cut.stopped_at) == ("stop", stop)
    assert 0 < cut.usage.generated < whole.usage.generated


def test_a_call_cut_by_the_tokens_is_no_call(tiny: LlamaEndpoint) -> None:
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "minLength": 300}},
        "required": ["text"],
    }
    ask = Ask(HELLO, tools=(ToolSpec("say", "", schema),), tool_choice="required", max_tokens=60)
    ended = replies(tiny, ask)
    assert (ended.finish_reason, ended.call, ended.content) == ("length", None, "")
    assert ended.usage.generated <= 60


@pytest.mark.parametrize(
    "text",
    ["It is 3, I think.", '{"thought": "I guess.", "type": "tool_call", "tool": "nope", "arguments": {}}'],
)
def test_where_nothing_is_enforced_prose_and_unknown_tools_are_no_reply(text: str) -> None:
    with pytest.raises(ProtocolError):
        replies(ScriptedEndpoint([text]), Ask(HELLO, tools=(STOCK,)))


def test_where_nothing_is_enforced_a_required_call_is_still_required() -> None:
    turn = json.dumps({"thought": "I know that already.", "type": "finish", "answer": "3"})
    with pytest.raises(ProtocolError, match="required"):
        replies(ScriptedEndpoint([turn]), Ask(HELLO, tools=(STOCK,), tool_choice="required"))


CALL = {"thought": "I look it up.", "type": "tool_call", "tool": "stock"}
EVEN = {"type": "object", "properties": {"n": {"type": "integer", "not": {"const": 3}}}, "required": ["n"]}


@pytest.mark.parametrize("arguments", [{}, {"sku": 7}, {"sku": "much too long"}, {"sku": "A", "more": 1}])
def test_where_nothing_is_enforced_arguments_are_checked_and_it_is_said(arguments: Any) -> None:
    ask = Ask(HELLO, tools=(STOCK,))
    turns = turns_of(ScriptedEndpoint([json.dumps({**CALL, "arguments": arguments})]))
    prepared = turns.prepare(ask)
    assert ["checked after the turn" in each for each in prepared.notices] == [True]
    with pytest.raises(ProtocolError, match="arguments that don't fit"):
        written(turns, prepared)


def test_where_nothing_is_enforced_nothing_is_strict() -> None:
    with pytest.raises(ClientError, match="not strict: nothing holds"):
        turns_of(ScriptedEndpoint([])).prepare(Ask(HELLO, tools=(STOCK,), strict=True))


@pytest.mark.parametrize(
    "fields", [{"answer": {"n": 3}}, {"answer": "3"}, {"status": "insufficient", "missing": "the number"}]
)
def test_where_nothing_is_enforced_an_answer_is_checked_against_its_schema(fields: Any) -> None:
    turn = json.dumps({"thought": "I know that already.", "type": "finish", **fields})
    with pytest.raises(ProtocolError):
        replies(ScriptedEndpoint([turn]), Ask(HELLO, answer=EVEN))
    good = json.dumps({"thought": "I know that already.", "type": "finish", "answer": {"n": 4}})
    assert replies(ScriptedEndpoint([good]), Ask(HELLO, answer=EVEN)).content == '{"n": 4}'


def test_where_nothing_is_enforced_quotes_are_checked() -> None:
    history = (*HELLO, Message("assistant", calls=(Called("c", "stock", '{"sku": "A"}'),)))
    ask = Ask((*history, Message("tool", "There are 3 left.", call_id="c")), tools=(STOCK,), cite=True)
    turn = {
        "thought": "I know that already.",
        "type": "finish",
        "evidence": [{"step": 1, "quote": "There are 9"}],
    }
    with pytest.raises(ProtocolError, match="evidence"):
        replies(ScriptedEndpoint([json.dumps({**turn, "answer": "9"})]), ask)


@pytest.mark.parametrize("as_answer", [True, False])
def test_what_a_grammar_leaves_out_is_checked_after_the_turn(tiny: LlamaEndpoint, as_answer: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2]}},
        "required": ["n"],
        "not": {"properties": {"n": {"const": 2}}},
    }
    outcomes = set()
    for seed in range(12):
        ask = Ask(HELLO, answer=schema) if as_answer else Ask(HELLO, tools=(ToolSpec("pick", "", schema),))
        ask = replace(ask, sampling=Sampling(temperature=1.0, seed=seed))
        ask = ask if as_answer else replace(ask, tool_choice="required")
        try:
            ended = replies(tiny, ask)
        except ProtocolError:
            outcomes.add("refused")
            continue
        if ended.finish_reason != "length":
            said = ended.content if ended.call is None else ended.call.arguments
            outcomes.add(said)
    assert outcomes == {"refused", '{"n": 1}'}


def test_what_a_model_wrote_comes_back_as_the_ids_that_it_wrote(tiny: LlamaEndpoint) -> None:
    turns = turns_of(tiny)
    ask = Ask(HELLO, tools=(STOCK,), tool_choice="required", sampling=Sampling(temperature=1.0, seed=2))
    first = turns.prepare(ask)
    _, ended = written(turns, first)
    assert ended.call is not None
    history = (*HELLO, Message("assistant", calls=(ended.call,)), Message("tool", "3", call_id=ended.call.id))
    then = turns.prepare(Ask(history, tools=(STOCK,)))
    before, after = tiny.encode(first.prompt), tiny.encode(then.prompt)
    assert after[: len(before)] == before
    assert ended.reasoning in then.prompt.text
    _, second = written(turns, then)
    # Its last forced tokens were never evaluated.
    assert second.usage.reused > len(before) + ended.usage.sampled


def test_an_altered_call_is_written_anew(tiny: LlamaEndpoint) -> None:
    turns = turns_of(tiny)
    ask = Ask(HELLO, tools=(STOCK,), tool_choice="required", sampling=Sampling(temperature=1.0, seed=2))
    _, ended = written(turns, turns.prepare(ask))
    assert ended.call is not None
    altered = Called(ended.call.id, "stock", '{"sku": "other"}')
    history = (*HELLO, Message("assistant", calls=(altered,)), Message("tool", "3", call_id=altered.id))
    prompt = turns.prepare(Ask(history, tools=(STOCK,))).prompt.text
    assert '{"sku": "other"}' in prompt
    assert ended.reasoning not in prompt


def test_a_schema_that_cannot_be_held_is_an_error_that_names_it(tiny: LlamaEndpoint) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^hi(\\!$"}}}
    with pytest.raises(GrammarError, match=r"'bad'.*/properties/a"):
        turns_of(tiny).prepare(Ask(HELLO, tools=(ToolSpec("bad", "", schema),)))


def test_what_a_grammar_leaves_out_is_said_and_refused_where_it_is_to_be_strict(tiny: LlamaEndpoint) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
    }
    tools = (ToolSpec("sum", "", schema),)
    notices = turns_of(tiny).prepare(Ask(HELLO, tools=tools)).notices
    assert ["uniqueItems" in each and "'sum'" in each for each in notices] == [True]
    with pytest.raises(ClientError, match="uniqueItems"):
        turns_of(tiny).prepare(Ask(HELLO, tools=tools, strict=True))


def test_a_prompt_beyond_the_context_is_refused_before_anything_is_written(tiny: LlamaEndpoint) -> None:
    with pytest.raises(ContextOverflowError):
        turns_of(tiny).prepare(Ask((Message("user", "word " * 5000),)))


def test_cited_answers_quote_results_by_their_number(tiny: LlamaEndpoint) -> None:
    history = (
        *HELLO,
        Message("assistant", calls=(Called("c1", "stock", '{"sku": "A7"}'),)),
        Message("tool", "There are 3 of them left in the north store.", call_id="c1"),
    )
    ended = replies(
        tiny,
        Ask(
            history,
            tools=(STOCK,),
            tool_choice="none",
            cite=True,
            max_tokens=1500,
            sampling=Sampling(temperature=1.0, seed=1),
        ),
    )
    assert ended.evidence
    for each in ended.evidence:
        assert each.step == 1
        assert each.quote in history[2].content
    with pytest.raises(ClientError, match="cite"):
        turns_of(tiny).prepare(Ask(HELLO, cite=True))


class Choosy(ScriptedEndpoint):
    """Its compiler takes one language, although it enforces two."""

    languages: tuple[str, ...] = ("gbnf", "json_schema")

    def __init__(self, taken: str) -> None:
        super().__init__([])
        self.taken = taken

    def check(self, grammar: TurnGrammar) -> None:
        if grammar.language != self.taken:
            raise GrammarError(f"the server refuses {grammar.language}")


def test_what_a_server_refuses_in_one_language_is_held_in_the_next() -> None:
    ask = Ask(HELLO, tools=(STOCK,))
    for language in ("gbnf", "json_schema"):
        prepared = turns_of(Choosy(language)).prepare(ask)
        assert prepared.grammar is not None
        assert prepared.grammar.language == language
    with pytest.raises(GrammarError, match="refuses gbnf"):
        turns_of(Choosy("none")).prepare(ask)

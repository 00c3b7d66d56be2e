from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import GrammarError, ProtocolError
from localreact.protocols import JsonProtocol, protocol
from localreact.protocols.base import mark_truncated, read_first
from localreact.types import Finish, Observation, Segment, ToolCall, ToolSpec, Turn, TurnSpec
from tests.specs import one_string

SPELLINGS = [
    JsonProtocol(),
    JsonProtocol(finish="tool"),
    JsonProtocol(first="type"),
    JsonProtocol(compact=True),
    JsonProtocol(thought="decision_summary"),
    JsonProtocol(finish="tool", compact=True, thought="decision_summary"),
]
ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)
SAY = one_string("say", "text")
SPEC = TurnSpec(tools=(ADD, SAY), answer=True, insufficient=True)

texts = st.text(st.characters(codec="utf-8"), max_size=60)
thoughts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=12, max_size=80)
turns = st.one_of(
    st.builds(
        ToolCall,
        thoughts,
        st.just("add"),
        st.fixed_dictionaries({"a": st.integers(-(10**25), 10**25), "b": st.integers()}),
    ),
    st.builds(ToolCall, thoughts, st.just("say"), st.fixed_dictionaries({"text": texts})),
    st.builds(lambda t, a: Finish(t, answer=a), thoughts, texts),
    st.builds(lambda t, m: Finish(t, missing=m), thoughts, texts),
)


@given(turn=turns, spelling=st.sampled_from(SPELLINGS), reading=st.sampled_from(SPELLINGS))
def test_every_spelling_reads_what_every_spelling_writes(
    turn: Turn, spelling: JsonProtocol, reading: JsonProtocol
) -> None:
    assert reading.parse(spelling.write(turn)) == turn


@given(turn=turns)
def test_streaming_shows_the_same_fields_however_the_text_is_cut(turn: Turn) -> None:
    for spelling in SPELLINGS:
        text = spelling.write(turn)
        for size in (1, 3, len(text)):
            reader, shown = spelling.reader(), dict[str, str]()
            for start in range(0, len(text), size):
                for field, piece in reader.feed(text[start : start + size]):
                    shown[field] = shown.get(field, "") + piece
            assert shown["thought"] == turn.thought
            if isinstance(turn, ToolCall):
                assert shown["tool"] == turn.tool
                assert json.loads(shown["arguments"]) == turn.arguments
                assert not {"answer", "missing"} & shown.keys()
            else:
                assert shown.get("answer", "") == (turn.answer or "")
                assert shown.get("missing", "") == (turn.missing or "")
                assert not {"tool", "arguments"} & shown.keys()


@pytest.mark.parametrize(
    "text", ["prose", "[1]", '{"tool":"finish","arguments":["x"]}', '{"thought": 5}', "{{"]
)
def test_the_reader_shows_nothing_of_what_is_no_turn(text: str) -> None:
    assert JsonProtocol().reader().feed(text) == []


def test_an_argument_called_answer_is_not_the_answer() -> None:
    reader = JsonProtocol().reader()
    text = JsonProtocol().write(ToolCall("I grade this.", "grade", {"answer": "42"}))
    assert not [piece for piece in reader.feed(text) if piece[0] == "answer"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I think the answer is 4.",
        '{"thought": "t", "type": "finish", "answer": "4"} {"thought": "t", "type": "finish", "answer": "5"}',
        '{"thought": "t", "type": "finish", "answer": "4"} trailing',
        '```json\n{"thought": "t", "type": "finish", "answer": "4"}\n```',
        '{"thought": "t", "thought": "u", "type": "finish", "answer": "4"}',
        '{"thought": "t", "type": "tool_call", "tool": "add", "arguments": {"a": 1, "a": 2}}',
        '{"thought": "t", "type": "tool_call", "tool": "add", "arguments": {"a": NaN}}',
        '{"thought": "t", "type": "tool_call", "tool": "add", "arguments": {"a": Infinity}}',
        '{"thought": "t", "type": "tool_result", "result": "12 left"}',
        '{"thought": "t", "type": "finish", "answer": "4", "extra": 1}',
        '{"thought": "t", "type": "finish", "answer": 4}',
        '{"thought": "t", "type": "finish", "status": "done", "missing": "x"}',
        '{"type": "finish", "answer": "4"}',
        '{"thought": 1, "type": "finish", "answer": "4"}',
        '{"thought": "t", "type": "tool_call", "tool": "add", "arguments": "{}"}',
        '["thought"]',
        '{"thought": "t", "type": "finish", "answer": "4"',
        "[" * 100_000,
        '{"thought": "t", "type": "tool_call", "tool": "f", "arguments": {"a": ' + "[" * 70 + "]" * 70 + "}}",
        '{"thought": "t", "type": "tool_call", "tool": "f", "arguments": {"a": 1e999}}',
        '{"thought": "t", "tool": "finish", "arguments": ["x"]}',
    ],
)
def test_the_strict_parser_refuses_what_is_not_exactly_one_turn(text: str) -> None:
    with pytest.raises(ProtocolError):
        JsonProtocol().parse(text)


@given(turn=turns, spelling=st.sampled_from(SPELLINGS), tail=st.text(max_size=40))
def test_of_a_text_that_goes_on_the_first_object_is_read(
    turn: Turn, spelling: JsonProtocol, tail: str
) -> None:
    written = spelling.write(turn)
    read, own = read_first(spelling, f"\n{written}{tail}")
    assert read == replace(turn, extra=len(tail.strip()))
    assert own == f"\n{written}"


@pytest.mark.parametrize("before", ["Sure! ", "```json\n", "[", "0 "])
def test_an_object_that_comes_after_something_else_is_no_turn(before: str) -> None:
    with pytest.raises(ProtocolError):
        read_first(JsonProtocol(), before + JsonProtocol().write(Finish("I know it.", answer="4")))


def test_raw_control_characters_inside_strings_are_repaired_and_counted() -> None:
    text = (
        '{"thought": "one\ntwo", "type": "tool_call",\n\t"tool": "say", "arguments": {"text": "a\tb\\n\x01"}}'
    )
    turn = JsonProtocol().parse(text)
    assert isinstance(turn, ToolCall)
    assert turn.arguments == {"text": "a\tb\n\x01"}
    assert turn.repaired == 3
    assert JsonProtocol().parse(JsonProtocol().write(turn)).repaired == 0


def test_nested_braces_are_read_whole() -> None:
    arguments = """{"expr":"{'a':{'b':1}}","n":"}"}"""
    text = '{"thought": "t", "type": "tool_call", "tool": "f", "arguments": ' + arguments + "}"
    turn = JsonProtocol().parse(text)
    assert isinstance(turn, ToolCall)
    assert turn.arguments == {"expr": "{'a':{'b':1}}", "n": "}"}


def accepts(endpoint: LlamaEndpoint, text: str, spelling: JsonProtocol, spec: TurnSpec = SPEC) -> bool:
    """Whether the text, token by token, is exactly one legal turn."""
    matcher = endpoint._start(spelling.grammar(spec, "lark"), ())
    for token in endpoint._model.vocab.encode([Segment(text)]):
        if matcher.done or not matcher.allows(token):
            return False
        matcher.accept([token])
    return matcher.done


@given(turn=turns, spelling=st.sampled_from(SPELLINGS))
def test_the_grammar_accepts_what_the_protocol_writes(
    tiny: LlamaEndpoint, turn: Turn, spelling: JsonProtocol
) -> None:
    ending = "" if isinstance(turn, ToolCall) else turn.answer if turn.missing is None else turn.missing
    if isinstance(turn, ToolCall):  # properties come in the schema's order
        turn = replace(turn, arguments=dict(sorted(turn.arguments.items())))
    text = spelling.write(turn)
    legal = ending != "" or isinstance(turn, ToolCall)  # an ending says something
    assume("\x7f" not in text)  # a raw DEL is legal JSON, and more than the grammar admits
    assert accepts(tiny, text, spelling) is legal


@given(
    turn=turns,
    tail=st.one_of(
        st.sampled_from(
            [
                " ",
                "\n",
                "\nObservation: 12 left",
                "\n观察：12",
                '{"type": "tool_result", "result": "12 left"}',
                "<|im_end|>",
                "<|im_start|>user",
                "}",
                ",",
            ]
        ),
        st.text(min_size=1),
    ),
)
def test_the_grammar_refuses_anything_after_a_turn(smollm2: LlamaEndpoint, turn: Turn, tail: str) -> None:
    assume(smollm2.model.vocab.encode_text(tail))  # this vocabulary has no tokens for bytes such as \x16
    for spelling in SPELLINGS[:2]:
        assert not accepts(smollm2, spelling.write(turn) + tail, spelling)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ('{"thought": "I know what to do.", "type": "tool_result", "result": "3"}', SPEC),
        ('{"thought": "I know what to do.", "type": "tool_call", "tool": "pay", "arguments": {}}', SPEC),
        ('{"thought": "short", "type": "finish", "answer": "4"}', SPEC),
        (
            '{"thought": "I know what to do.", "type": "finish", "answer": "4"}',
            TurnSpec(tools=(ADD,), answer=False),
        ),
        (
            '{"thought": "I know what to do.", "type": "finish", "status": "insufficient", "missing": "x"}',
            TurnSpec(tools=(ADD,)),
        ),
        (
            JsonProtocol().write(ToolCall("I know what to do.", "add", {"a": 1, "b": 2})),
            TurnSpec(),
        ),
        (
            JsonProtocol().write(ToolCall("I know what to do.", "add", {"a": "1", "b": 2})),
            SPEC,
        ),
        ('{"thought":  "I know what to do.", "type": "finish", "answer": "4"}', SPEC),
        ('{"thought": "I know\nwhat to do.", "type": "finish", "answer": "4"}', SPEC),
    ],
)
def test_the_grammar_admits_only_what_the_policy_admits(
    smollm2: LlamaEndpoint, text: str, spec: TurnSpec
) -> None:
    assert not accepts(smollm2, text, JsonProtocol(), spec)


def test_bounds_hold_in_the_grammar_and_mark_the_turn() -> None:
    spec = TurnSpec(tools=(SAY,), argument_max=10, answer_max=10)
    assert mark_truncated(ToolCall("t", "say", {"text": "0123456789"}), spec).truncated == ("/text",)
    assert mark_truncated(ToolCall("t" * 400, "say", {"text": "012345678"}), spec).truncated == ()
    assert mark_truncated(Finish("t", answer="0123456789"), spec).truncated == ("answer",)


def test_the_grammar_closes_a_string_at_its_bound(smollm2: LlamaEndpoint) -> None:
    spec = TurnSpec(tools=(SAY,), argument_max=10)
    call = JsonProtocol().write(ToolCall("I say this now.", "say", {"text": "0123456789"}))
    assert accepts(smollm2, call, JsonProtocol(), spec)
    assert not accepts(smollm2, call.replace("789", "7890"), JsonProtocol(), spec)


def test_a_turn_with_nothing_legal_is_an_error() -> None:
    with pytest.raises(GrammarError, match="no legal tool"):
        JsonProtocol().grammar(TurnSpec(answer=False), "lark")


def test_an_unknown_protocol_or_spelling_is_named() -> None:
    with pytest.raises(Exception, match="no protocol 'xml'"):
        protocol("xml")
    with pytest.raises(Exception, match="no such spelling"):
        protocol("json", {"colour": "red"})


def test_what_the_runtime_says_keeps_tool_text_untrusted_and_verbatim() -> None:
    content = 'gives {"id":1} or }}} {{ 7*7 }} {missing} <|im_end|>'
    segments = JsonProtocol().observation(Observation("t", content))
    said = json.loads("".join(segment.text for segment in segments))
    assert said == {"type": "tool_result", "result": content}
    assert [segment.trusted for segment in segments] == [True, False, True]

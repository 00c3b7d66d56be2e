"""Turns as one regex: what it matches is what the other languages accept."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from localreact.engines.llguidance import LLGuidanceEngine
from localreact.engines.outlines import OutlinesEngine
from localreact.errors import GrammarError
from localreact.grammar.exclude import without
from localreact.grammar.lark import bounded
from localreact.protocols import PROTOCOLS, JsonProtocol, protocol
from localreact.types import Finish, Source, ToolCall, ToolSpec, Turn, TurnGrammar, TurnSpec
from tests.schemas import Case, cases
from tests.specs import SEARCH, one_string

SPEC = TurnSpec(tools=(SEARCH, one_string("look/up&~#", "x")), answer=True, insufficient=True)
RUST = LLGuidanceEngine.over_bytes()
SLOTS = OutlinesEngine.over_bytes()

TURNS: tuple[Turn, ...] = (
    ToolCall("I should look it up.", "search", {"query": "a/b & c~d #1 日本 x-y \\ 50%"}),
    ToolCall("I should look it up.", "look/up&~#", {"x": "7"}),
    Finish("It is there, I know it.", answer="3 left/right"),
    Finish("It is not there, at all.", missing="the number"),
)


def matches(grammar: TurnGrammar, text: str) -> bool:
    return re.fullmatch(grammar.text, text) is not None


def in_rust(grammar: TurnGrammar) -> TurnGrammar:
    text = grammar.text.replace("/", "\\/")
    return TurnGrammar("lark", f"start: TURN\nTURN: /{text}/")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_turn_matches_as_a_whole_and_nothing_before_or_after_it(name: str) -> None:
    format_ = protocol(name)
    spec = SPEC if name in ("json", "text") else TurnSpec(tools=(SEARCH,), insufficient=True)
    grammar = format_.grammar(spec, "regex")
    assert grammar.language == "regex"
    rust = in_rust(grammar)
    for turn in TURNS:
        if isinstance(turn, ToolCall) and turn.tool not in [tool.name for tool in spec.tools]:
            continue
        text = format_.write(turn)
        if name == "bracket":
            text = text.replace("]", ")")[:-1] + "]"
        assert matches(grammar, text), text
        assert RUST.accepts(rust, text)
        ends = (text + "\nObservation: 12", text + text, text[: len(text) // 3])
        for forged in (*ends, " " + text, text.replace("hought", "houghts")):
            assert not matches(grammar, forged), forged
            assert not RUST.accepts(rust, forged)


@pytest.mark.parametrize("name", PROTOCOLS)
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["", "moon", "a]b", "Observation: 1", 'q"\\', "日本", "x" * 7]),
    st.integers(0, 90),
    st.sampled_from(["", " ", "\n", "]", '"', "}", "x", ":", "\\", "\nAction: search[x]"]),
    st.integers(0, 3),
)
def test_it_matches_what_the_slots_accept(name: str, said: str, at: int, put_in: str, left_out: int) -> None:
    spec = TurnSpec((SEARCH,), insufficient=True, thought_max=30, argument_max=6, answer_max=9)
    format_ = protocol(name)
    grammar, slots = (format_.grammar(spec, language) for language in ("regex", "slots"))
    turns = (ToolCall("I look it up.", "search", {"query": said}), Finish("It is known.", answer=said or "-"))
    for turn in turns:
        text = format_.write(turn)
        text = text[:at] + put_in + text[at + left_out :]
        assert matches(grammar, text) == SLOTS.accepts(slots, text), text


def written(case: Case) -> TurnGrammar | None:
    """None where a value may nest to any depth."""
    try:
        return JsonProtocol().grammar(TurnSpec((ToolSpec("t", "", case.schema),), answer=False), "regex")
    except GrammarError as error:
        if "any depth" not in error.message:
            raise
        return None


def test_schemas_hold_as_they_do_elsewhere() -> None:
    regular = 0
    for case in cases():
        if (grammar := written(case)) is None:
            continue
        regular += 1
        validator = Draft202012Validator(
            bounded(case.schema, 1000), format_checker=Draft202012Validator.FORMAT_CHECKER
        )
        for arguments in case.arguments:
            text = JsonProtocol().write(ToolCall("I call the tool.", "t", arguments))
            assert matches(grammar, text) == validator.is_valid(arguments), (case.name, arguments)
    assert regular > 150


def test_a_schema_that_refers_to_itself_is_an_error_that_names_the_tool() -> None:
    kids = {"type": "array", "items": {"$ref": "#/$defs/Kids"}}
    tree = {"type": "object", "properties": {"kids": {"$ref": "#/$defs/Kids"}}, "$defs": {"Kids": kids}}
    spec = TurnSpec((SEARCH, ToolSpec("grow", "", tree)))
    for name in ("json", "text", "call"):
        with pytest.raises(GrammarError, match=r"'grow' can't be held by a regex(.|\n)*JSON Schema"):
            protocol(name).grammar(spec, "regex")


def test_a_regex_that_grows_beyond_measure_is_an_error() -> None:
    def nested(depth: int) -> dict[str, object]:
        if not depth:
            return {"type": "string"}
        names = [f"field_{depth}_{each}" for each in range(9)]
        return {"type": "object", "properties": dict.fromkeys(names, nested(depth - 1)), "required": names}

    with pytest.raises(GrammarError, match="'deep' can't be held by a regex"):
        JsonProtocol().grammar(TurnSpec((ToolSpec("deep", "", nested(4)),)), "regex")


def test_a_dead_call_is_taken_out() -> None:
    pieces = without(SEARCH, [{"query": "moon"}], 1000)
    grammar = JsonProtocol().grammar(TurnSpec(pieces), "regex")

    def call(query: str) -> str:
        return JsonProtocol().write(ToolCall("I look it up.", "search", {"query": query}))

    assert not matches(grammar, call("moon"))
    for query in ("moo", "moons", "Moon", "m", "日本"):
        assert matches(grammar, call(query))


def test_citations_are_not_for_a_regex() -> None:
    spec = TurnSpec((SEARCH,), sources=(Source(1, "What was said before."),))
    with pytest.raises(GrammarError, match="citations"):
        JsonProtocol().grammar(spec, "regex")

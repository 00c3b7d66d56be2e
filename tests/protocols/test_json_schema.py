"""The json protocol as a JSON Schema: the same turns as its grammar, whatever compiles the schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from localreact.errors import GrammarError
from localreact.grammar.exclude import without
from localreact.protocols import JsonProtocol
from localreact.types import Finish, ToolCall, ToolSpec, Turn, TurnSpec
from tests.specs import SEARCH

NESTED = ToolSpec(
    "tree",
    "Plant a tree.",
    {
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/node"}, "$ref": {"type": "string"}},
        "required": ["root"],
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["name"],
            }
        },
    },
)
SPELLINGS: list[dict[str, Any]] = [
    {},
    {"finish": "tool"},
    {"first": "type"},
    {"thought": "decision_summary", "compact": True},
]
THOUGHT = "I should look it up."
LEGAL: list[Turn] = [
    ToolCall(THOUGHT, "search", {"query": "zeta-9"}),
    ToolCall(THOUGHT, "tree", {"root": {"name": "oak", "children": [{"name": "elm"}]}}),
    Finish(THOUGHT, answer="3"),
    Finish(THOUGHT, missing="the year"),
]


def schema_of(spec: TurnSpec, spelling: dict[str, Any] | None = None) -> Any:
    grammar = JsonProtocol(**(spelling or {})).grammar(spec, "json_schema")
    assert grammar.language == "json_schema"
    schema = json.loads(grammar.text)
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def fits(schema: Any, text: str) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_legal_turns_fit_and_barred_ones_do_not(spelling: dict[str, Any]) -> None:
    protocol = JsonProtocol(**spelling)
    schema = schema_of(TurnSpec((SEARCH, NESTED), insufficient=True), spelling)
    for turn in LEGAL:
        assert fits(schema, protocol.write(turn))
    closed = schema_of(TurnSpec((SEARCH,), answer=False), spelling)
    assert [fits(closed, protocol.write(turn)) for turn in LEGAL] == [True, False, False, False]
    for text in (
        '{"type": "tool_result", "result": "99"}',
        protocol.write(LEGAL[0])[:-1] + ', "result": "99"}',
        protocol.write(ToolCall(THOUGHT, "search", {"query": 3})),
        protocol.write(ToolCall(THOUGHT, "rm", {"query": "x"})),
        protocol.write(ToolCall("", "search", {"query": "x"})),
        protocol.write(ToolCall(THOUGHT, "search", {"query": "x" * 1001})),
    ):
        assert not fits(schema, text), text


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_fields_stand_in_the_order_of_the_spelling(spelling: dict[str, Any]) -> None:
    protocol = JsonProtocol(**spelling)
    schema = schema_of(TurnSpec((SEARCH,)), spelling)
    for turn, each in zip((LEGAL[0], LEGAL[2]), schema["anyOf"], strict=True):
        assert list(each["properties"]) == list(json.loads(protocol.write(turn)))
        assert each["required"] == list(each["properties"])


def test_references_point_to_where_their_definitions_went() -> None:
    schema = schema_of(TurnSpec((NESTED,), answer=False))
    protocol = JsonProtocol()
    assert fits(schema, protocol.write(LEGAL[1]))
    assert not fits(schema, protocol.write(ToolCall(THOUGHT, "tree", {"root": {"children": []}})))


def test_a_compiler_takes_it() -> None:
    text = json.dumps(schema_of(TurnSpec((SEARCH, NESTED), insufficient=True)))
    failed, messages = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_json_schema(text))
    assert not failed, messages


def test_an_answer_of_a_type_has_its_schema() -> None:
    year = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
    schema = schema_of(TurnSpec(answer_schema=year))
    turn = '{"thought": "I should look it up.", "type": "finish", "answer": %s}'
    assert fits(schema, turn % '{"year": 1962}')
    assert not fits(schema, turn % '{"year": "1962"}')
    assert not fits(schema, turn % '"1962"')


def test_a_call_taken_out_needs_no_pattern_that_servers_may_not_know() -> None:
    pieces = without(SEARCH, [{"query": "zeta-9"}])
    assert "pattern" in json.dumps(pieces[0].parameters)
    spec = TurnSpec(pieces, excluded=(("search", {"query": "zeta-9"}),))
    assert "pattern" not in json.dumps(schema_of(spec))


def test_nothing_legal_is_an_error() -> None:
    with pytest.raises(GrammarError):
        JsonProtocol().grammar(TurnSpec(answer=False), "json_schema")


@settings(deadline=None)
@given(st.text(min_size=12, max_size=40), st.text(min_size=1, max_size=40))
def test_what_fits_parses_to_the_turn_that_it_is(thought: str, query: str) -> None:
    turn = ToolCall(thought, "search", {"query": query})
    schema = schema_of(TurnSpec((SEARCH,)))
    text = json.dumps(json.loads(JsonProtocol().write(turn)), indent=1)  # a server's own spacing
    assert fits(schema, text)
    assert JsonProtocol().parse(text) == turn

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any, Literal, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from localreact import tool
from localreact.engines import gbnf_text
from localreact.engines.llguidance import LLGuidanceEngine
from localreact.errors import GrammarError
from localreact.grammar.schema import enforceable
from localreact.protocols import JsonProtocol
from localreact.types import JsonSchema, ToolCall, ToolSpec, TurnGrammar, TurnSpec

LANGUAGES = ("lark", "gbnf")
TAKES = {"lark": LLGuidanceEngine.over_bytes().accepts, "gbnf": gbnf_text.accepts}


def grammar_of(schema: JsonSchema, language: str) -> TurnGrammar:
    spec, _ = enforceable(ToolSpec("t", "", schema), language)
    return JsonProtocol().grammar(TurnSpec((spec,)), language)


def accepts(schema: JsonSchema, *values: Any, languages: Sequence[str] = LANGUAGES) -> list[bool]:
    """Which values the turn's grammar admits as arguments of a tool with such a schema, in every language."""
    texts = [JsonProtocol().write(ToolCall("I call the tool.", "t", value)) for value in values]
    decisions = []
    for language in languages:
        grammar = grammar_of(schema, language)
        decisions.append([TAKES[language](grammar, text) for text in texts])
    assert all(each == decisions[0] for each in decisions)
    return decisions[0]


def only(name: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: schema}, "required": [name], **more}


def test_patterns_with_classes_alternation_and_nesting() -> None:
    schema = only(
        "a", {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": r"^(\d{2}|k:[a-z]+)$"}}
    )
    assert accepts(schema, {"a": ["07", "k:ab"]}, {"a": ["7"]}, {"a": []}) == [True, False, False]


@pytest.mark.parametrize(
    "schema",
    [
        only(
            "a",
            {
                "type": "array",
                "maxItems": 50,
                "items": {"type": "object", "properties": {"s": {"type": "string", "maxLength": 2000}}},
            },
        ),
        only("a", {"type": "string", "maxLength": 65536}),
    ],
)
def test_large_bounds_compile_at_once(schema: dict[str, Any]) -> None:
    started = time.perf_counter()
    accepts(schema, {"a": []})
    assert time.perf_counter() - started < 5  # milliseconds in truth; a machine may be busy


def test_large_bounds_hold() -> None:
    schema = only("a", {"type": "string", "maxLength": 5000})
    assert accepts(schema, {"a": "x" * 5000}, {"a": "x" * 5001}, languages=["lark"]) == [True, False]
    items = only("a", {"type": "array", "maxItems": 50, "items": {"type": "integer"}})
    assert accepts(items, {"a": [1] * 50}, {"a": [1] * 51}) == [True, False]


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    for schema in (
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "required": []},
    ):
        assert accepts(schema, {}, {"a": 1}) == [True, False]


class Unit(BaseModel):
    scale: Optional[Literal["c", "f"]] = None  # noqa: UP045  (the spelling that people use)


class Place(BaseModel):
    unit: Unit
    other: Unit
    count: int = Field(default=1)


def test_nested_models_that_share_an_optional_literal() -> None:
    @tool
    def weather(place: Place) -> str:
        return ""

    def place(**unit: Any) -> dict[str, Any]:
        return {"place": {"unit": unit, "other": {}}}

    schema = weather.spec.parameters
    assert accepts(schema, place(scale="c"), place(scale=None), place(), place(scale="k")) == [
        True,
        True,
        True,
        False,
    ]
    assert accepts(schema, {"place": {"unit": {}, "other": {}, "count": None}}) == [False]


def test_a_recursive_tree_goes_deep_and_an_endless_reference_is_an_error() -> None:
    node = {
        "type": "object",
        "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
        "required": ["kids"],
    }
    tree: dict[str, Any] = {"kids": []}
    for _ in range(5):
        tree = {"kids": [tree]}
    assert accepts(only("tree", {"$ref": "#/$defs/Node"}, **{"$defs": {"Node": node}}), {"tree": tree}) == [
        True
    ]
    for endless in ({"$ref": "#/$defs/A"}, only("next", {"$ref": "#/$defs/A"})):
        with pytest.raises(GrammarError, match=r"tool 't' can't be satisfied at /.*: no finite value"):
            accepts(only("a", {"$ref": "#/$defs/A"}, **{"$defs": {"A": endless}}))
    for endless in ({"$ref": "#"}, only("next", {"$ref": "#"})):
        with pytest.raises(GrammarError, match="no finite value"):
            accepts(endless)


def test_odd_schemas_take_any_value_or_are_left_out() -> None:
    schema = {"type": "object", "properties": {"a": True, "b": {"title": "B"}, "c": {"not": {}}}}
    values = [{"a": 1}, {"a": [None, {"x": "y"}], "b": "text"}, {}, {"c": 1}]
    assert accepts(schema, *values) == [True, True, True, False]
    assert enforceable(ToolSpec("t", "", schema))[1] == []  # c is ruled out, not relaxed


def test_integer_bounds_and_spelling() -> None:
    schema = only("n", {"type": "integer", "minimum": -3, "maximum": 9007199254740991})
    good = [-3, 0, 7, 9007199254740991]
    assert all(accepts(schema, *({"n": n} for n in good)))
    assert not any(accepts(schema, {"n": -4}, {"n": 9007199254740992}, {"n": 1.5}))
    text = JsonProtocol().write(ToolCall("I call the tool.", "t", {"n": 1}))
    for language, takes in TAKES.items():
        assert takes(grammar_of(schema, language), text)
        assert not takes(grammar_of(schema, language), text.replace('"n": 1', '"n": 01'))


def test_slashes_and_control_characters() -> None:
    constant = only("a", {"const": 'a/b"c\\d'})
    assert accepts(constant, {"a": 'a/b"c\\d'}, {"a": "a/b"}) == [True, False]
    free = only("a", {"type": "string"})
    text = JsonProtocol().write(ToolCall("I call the tool.", "t", {"a": "x/y"}))
    for language, takes in TAKES.items():
        grammar = grammar_of(free, language)
        assert takes(grammar, text)
        for raw in ("\n", "\t", "\x01", "\\/", "\\u0041"):
            assert not takes(grammar, text.replace("x/y", f"x{raw}y"))


@pytest.mark.parametrize("space", ["  ", "\n", "\t", " \n "])
def test_no_whitespace_but_one_space_after_colon_and_comma(space: str) -> None:
    schema = only("a", {"type": "array", "items": {"type": "integer"}})
    text = JsonProtocol().write(ToolCall("I call the tool.", "t", {"a": [1, 2]}))
    for language, takes in TAKES.items():
        grammar = grammar_of(schema, language)
        assert takes(grammar, text)
        for place in (": [", ", 2", "[1", "]}", '": "'):
            assert not takes(grammar, text.replace(place, place[0] + space + place[1:].lstrip(), 1))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "format": "date"}, "2031-02-03", "2031-13-45"),
        ({"type": "string", "format": "date-time"}, "2031-02-03T04:05:06Z", "yesterday"),
        ({"type": "string", "format": "time"}, "04:05:06Z", "4 o'clock"),
        ({"type": "string", "format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000", "123"),
        ({"type": "string", "format": "email"}, "a@example.org", "a"),
        ({"type": "string", "format": "ipv4"}, "127.0.0.1", "300.1.1.1"),
        ({"type": "string", "format": "ipv6"}, "::1", "zz"),
        ({"enum": ["a", 1, None]}, None, "b"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, "x"),
        ({"allOf": [{"type": "integer", "minimum": 1}, {"maximum": 5}]}, 5, 6),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
            [1, "a"],
            ["a", 1],
        ),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, 0.5, 0),
        ({"type": "string", "minLength": 2, "maxLength": 3}, "日本", "日"),
        ({"type": ["string", "null"]}, None, 1),
        ({"const": "日本"}, "日本", "日"),
    ],
)
def test_what_is_held_of_a_schema(schema: dict[str, Any], good: Any, bad: Any) -> None:
    assert accepts(only("v", schema), {"v": good}, {"v": bad}) == [True, False]


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"not": {"type": "string"}}, "/properties/v", "not"),
        ({"type": "string", "pattern": '^[^"]+$'}, "/properties/v", "pattern"),  # llguidance takes \"
        ({"type": "string", "pattern": "^[^!-/]$"}, "/properties/v", "pattern"),
        ({"type": "string", "pattern": "^[^ -~]+$"}, "/properties/v", "pattern"),
        ({"type": "string", "pattern": "^[^Z-a]$"}, "/properties/v", "pattern"),
        ({"type": "string", "pattern": r'^a[^\]"]$'}, "/properties/v", "pattern"),
        ({"type": "string", "pattern": r"^[\x00-\x1f]$"}, "/properties/v", "pattern"),
        ({"type": "string", "pattern": r"^([\x00-\x0f]|[\x10-\x1f])$"}, "/properties/v", "pattern"),
        (
            {"type": "object", "patternProperties": {"^[^!-/]+$": True}, "additionalProperties": False},
            "/properties/v",
            "patternProperties",
        ),
        ({"type": "array", "uniqueItems": True}, "/properties/v", "uniqueItems"),
        ({"type": "array", "items": {"type": "string", "format": "iri"}}, "/properties/v/items", "format"),
        ({"if": {"type": "string"}}, "/properties/v", "if"),
        (
            {"type": "object", "properties": {"a/b": {"contains": {}}}},
            "/properties/v/properties/a~1b",
            "contains",
        ),
    ],
)
def test_what_is_not_held_is_reported_with_a_pointer(
    schema: dict[str, Any], pointer: str, keyword: str
) -> None:
    _, left_out = enforceable(ToolSpec("t", "", only("v", schema)))
    assert [(each.pointer, each.keyword) for each in left_out] == [(pointer, keyword)]


ESCAPED = ('"', "\\", "\n", "\x01", "a", "!")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(["\\x00-\\x1f", "\\n", "\\t", '"', "\\\\", "a", "!-/", " -~", "\\x00", "\\s", "\\w"]),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
    st.sampled_from(["^[{}]$", "^(x|[{}])$", "^([{}]|[\\x00-\\x1f])$"]),
)
def test_a_pattern_that_is_not_reported_is_held_also_for_what_json_escapes(
    members: list[str], negated: bool, around: str
) -> None:
    pattern = around.format("^" * negated + "".join(members))
    schema = only("v", {"type": "string", "pattern": pattern})
    tool, left_out = enforceable(ToolSpec("t", "", schema))
    grammar = JsonProtocol().grammar(TurnSpec((tool,)), "lark")
    for text in ESCAPED:
        taken = TAKES["lark"](grammar, JsonProtocol().write(ToolCall("I call the tool.", "t", {"v": text})))
        fits = bool(re.search(pattern, text))
        assert taken == fits or (taken and left_out), (pattern, text)


def test_a_dead_reference_is_named_by_tool_and_pointer() -> None:
    with pytest.raises(GrammarError, match="tool 't' can't be enforced at /properties/v"):
        enforceable(ToolSpec("t", "", only("v", {"$ref": "#/$defs/nothing"})))


def test_a_big_integer_passes_through_unchanged() -> None:
    value = 123456789012345678901234567890
    assert accepts(only("n", {"type": "integer"}), {"n": value}) == [True]
    turn = JsonProtocol().parse(JsonProtocol().write(ToolCall("I call the tool.", "t", {"n": value})))
    assert isinstance(turn, ToolCall)
    assert turn.arguments == {"n": value}
    assert json.loads(json.dumps(turn.arguments))["n"] == value


def test_combined_schemas_are_not_closed_against_each_other() -> None:
    part = {"properties": {"b": {"type": "integer"}}, "required": ["b"]}
    for schema in (
        only("a", {"type": "integer"}, allOf=[part]),
        only("a", {"type": "integer"}, **{"$ref": "#/$defs/Part", "$defs": {"Part": part}}),
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]},
    ):
        assert accepts(schema, {"a": 1, "b": 2}, {"a": 1}) == [True, False]


def test_an_object_that_asks_for_more_members_than_it_names_stays_open() -> None:
    more = only("a", {"type": "integer"}, minProperties=2)
    assert accepts(more, {"a": 1, "b": 2}, {"a": 1}, languages=["lark"]) == [True, False]
    nested = only("o", more)
    assert accepts(nested, {"o": {"a": 1, "b": 2}}, {"o": {"a": 1}}, languages=["lark"]) == [True, False]
    for language in ("gbnf", "slots"):  # which reports what it can't count
        tool, left_out = enforceable(ToolSpec("t", "", more), language)
        assert [each.keyword for each in left_out] == ["minProperties"]
        text = JsonProtocol().write(ToolCall("I call the tool.", "t", {"a": 1, "b": 2}))
        grammar = JsonProtocol().grammar(TurnSpec((tool,)), language)
        assert language != "gbnf" or TAKES[language](grammar, text)


def test_what_the_compiled_schema_holds_is_not_reported() -> None:
    counted = {"type": "object", "properties": {"a": True, "b": True}, "maxProperties": 2}
    for language in ("gbnf", "slots"):
        assert enforceable(ToolSpec("t", "", counted), language)[1] == []  # there are no others to count


def test_every_string_that_is_left_open_gets_a_bound() -> None:
    schema = only("a", {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}})
    assert accepts(schema, {"a": ["x" * 1000, None]}, {"a": ["x" * 1001]}) == [True, False]
    assert accepts(only("a", {"type": "string", "minLength": 1500}), {"a": "x" * 1500}) == [True]


@pytest.mark.parametrize(
    "string",
    [{}, {"description": "A note."}, {"pattern": "^x+$"}, {"type": "string", "pattern": "^[a-z]*x$"}],
    ids=json.dumps,
)
def test_strings_without_a_type_and_with_an_open_pattern_get_a_bound_too(string: JsonSchema) -> None:
    assert accepts(only("a", string), {"a": "x" * 1000}, {"a": "x" * 1001}) == [True, False]


def test_where_a_grammar_knows_and_every_pattern_gets_a_bound() -> None:
    for string in ({"pattern": "xx"}, {"pattern": "^x+ ?x+$"}, {"type": "string", "pattern": "^(x+|y)*$"}):
        schema = only("a", string)
        found = accepts(schema, {"a": "x" * 1000}, {"a": "x" * 1001}, languages=["lark"])
        assert found == [True, False]
        for language in LANGUAGES:  # a bound of ours is nobody's keyword
            assert enforceable(ToolSpec("t", "", schema), language)[1] == []

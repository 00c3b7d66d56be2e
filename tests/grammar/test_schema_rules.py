from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from localreact.errors import GrammarError
from localreact.grammar import numbers
from localreact.grammar.formats import FORMATS
from localreact.grammar.patterns import lengths, parse
from localreact.grammar.recogniser import Recogniser
from localreact.grammar.rules import Rules
from localreact.grammar.schema import enforceable
from localreact.grammar.schema_rules import schema_rules
from localreact.types import ToolSpec


def recogniser(schema: Any, **more: Any) -> Recogniser:
    return Recogniser(schema_rules(schema, **more)[0])


def accepts(schema: Any, *values: Any) -> list[bool]:
    found = recogniser(schema)
    return [found.accepts(json.dumps(value, ensure_ascii=False)) for value in values]


def left_out(schema: Any, **more: Any) -> list[tuple[str, str]]:
    return schema_rules(schema, **more)[1]


INTEGERS = st.one_of(st.integers(-30, 30), st.integers(-(10**20), 10**20))


@given(st.none() | INTEGERS, st.none() | INTEGERS, INTEGERS)
def test_integers_between_bounds(least: int | None, most: int | None, value: int) -> None:
    found = Recogniser(Rules(numbers.integers(least, most)))
    for each in {value, *(bound + d for bound in (least, most) if bound is not None for d in (-1, 0, 1))}:
        fits = (least is None or each >= least) and (most is None or each <= most)
        assert found.accepts(str(each)) == fits
    assert not found.accepts("01")


DECIMALS = st.builds(lambda n, places: Decimal(n).scaleb(-places), st.integers(-400, 400), st.integers(0, 3))


@given(DECIMALS, DECIMALS, st.booleans(), st.booleans(), DECIMALS)
def test_numbers_between_bounds(a: Decimal, b: Decimal, above: bool, below: bool, value: Decimal) -> None:
    least, most = min(a, b), max(a, b)
    found = Recogniser(Rules(numbers.numbers(least, most, above, below)))
    for each in {value, least, most}:
        fits = least <= each <= most and not (above and each == least) and not (below and each == most)
        text = f"{each:f}"
        assert found.accepts(text) == (fits and not text.startswith("-0.000"[: len(text)])) or each == 0
        assert found.accepts(text + ("0" if "." in text else ".0")) == found.accepts(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(JSON, st.booleans())
def test_an_empty_schema_takes_any_value_in_one_spelling(value: Any, compact: bool) -> None:
    separators = (",", ":") if compact else (", ", ": ")
    text = json.dumps(value, ensure_ascii=False, separators=separators).replace("\x7f", "")
    assert recogniser({}, compact=compact).accepts(text)
    other = json.dumps(value, ensure_ascii=False, indent=1).replace("\x7f", "")
    assert other == text or not recogniser({}, compact=compact).accepts(other)


@given(JSON)
def test_a_constant_is_the_only_value(value: Any) -> None:
    assert accepts({"const": value}, value, [value]) == [True, False]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {
                "properties": {"a": {"type": "integer"}, "b": {}},
                "required": ["b"],
                "additionalProperties": False,
            },
            [{"a": 1, "b": 2}, {"b": 2}, 7],
            [{"a": 1}, {"b": 1, "a": 1}, {"b": 1, "c": 1}, {}],
        ),
        (
            {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False},
            [{}, {"a": 1}, {"c": 1}, {"a": 1, "c": 1}, {"a": 1, "b": 2, "c": 3}],
            [{"c": 1, "a": 1}],
        ),
        (
            {
                "type": "object",
                "properties": {"a": {}, "ab": {}},
                "additionalProperties": {"type": "integer"},
            },
            [{"a": "", "b": 1, "abc": 2}, {"": 1}, {"b": 1}, {"ab": "", "aba": 3}],
            [{"b": ""}, {"a": 1, "b": ""}],
        ),
        (
            {
                "type": "object",
                "additionalProperties": {"type": "null"},
                "minProperties": 1,
                "maxProperties": 2,
            },
            [{"x": None}, {"x": None, "y": None}],
            [{}, {"x": None, "y": None, "z": None}, {"x": 1}],
        ),
        ({"type": "object", "required": ["z"]}, [{"z": 1}, {"z": 1, "y": 2}], [{}, {"y": 2}]),
        (
            {
                "type": "object",
                "patternProperties": {"^x-": {"type": "integer"}},
                "additionalProperties": False,
            },
            [{}, {"x-1": 1}, {"x-1": 1, "x-2": 2}],
            [{"x-1": ""}, {"y": 1}],
        ),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "minItems": 1},
            [[1], [1, None], [1, None, "x", 2]],
            [[], [None], [1, 2]],
        ),
        (
            {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
            [[], [1], [1, 2]],
            [[1, 2, 3], [""]],
        ),
        ({"type": "array", "items": False}, [[]], [[1]]),
        ({"type": "array", "maxItems": 0}, [[]], [[1]]),
        ({"allOf": [{"type": "integer", "minimum": 1}, {"maximum": 5}]}, [1, 5], [0, 6, "x"]),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"minimum": 1}}, "required": ["a"]},
                    {"properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["b"]},
                ],
                "additionalProperties": False,
                "properties": {"a": True, "b": True},
            },
            [{"a": 1, "b": None}],
            [{"a": 0, "b": None}, {"a": 1}, {"a": 1, "b": None, "c": 1}],
        ),
        (
            {
                "type": "object",
                "properties": {"a": {}, "b": {}},
                "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            },
            [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
            [{}],
        ),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, ""], [None]),
        ({"type": ["string", "null"], "maxLength": 1}, ["", "a", None], ["ab", 1]),
        ({"enum": [1, "a", None, {"b": [True]}]}, [1, "a", None, {"b": [True]}], [True, "b", {"b": [1]}]),
        ({"enum": [1, "a", None], "type": ["integer", "null"]}, [1, None], ["a"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["日本", 'a"\n'], ["日", "abcd"]),
        ({"type": "string", "pattern": "^a", "not": {}}, [], ["a"]),
        ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 2}, ["ab"], ["abc", "A"]),
        ({"type": "integer", "exclusiveMinimum": 0, "maximum": 2.5}, [1, 2], [0, 3, 1.5]),
        (
            {"type": "object", "properties": {"日本": {"const": "語"}}, "required": ["日本"]},
            [{"日本": "語"}],
            [{}],
        ),
        (
            {"type": "object", "properties": {"a": {"not": {}}, "b": False}},
            [{"c": 1}, {}],
            [{"a": 1}, {"b": 1}],
        ),
    ],
)
def test_what_rules_hold_of_a_schema(schema: Any, good: list[Any], bad: list[Any]) -> None:
    if schema.get("not") == {}:
        with pytest.raises(GrammarError, match="no value fits"):
            schema_rules(schema)
        return
    assert left_out(schema) == []
    assert accepts(schema, *good) == [True] * len(good)
    assert accepts(schema, *bad) == [False] * len(bad)


def test_recursion_by_reference() -> None:
    tree = {
        "type": "object",
        "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["kids"],
    }
    value: dict[str, Any] = {"kids": []}
    for _ in range(30):
        value = {"kids": [value, {"kids": []}]}
    assert accepts(tree, value, {"kids": [1]}) == [True, False]


def test_a_schema_that_is_itself_or_something_else_is_something_else() -> None:
    schema = {
        "$ref": "#/$defs/A",
        "$defs": {
            "A": {"anyOf": [{"$ref": "#/$defs/B"}, {"type": "integer"}]},
            "B": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]},
        },
    }
    assert accepts(schema, 1, None, "x") == [True, True, False]


@pytest.mark.parametrize(
    ("schema", "reported"),
    [
        ({"type": "array", "uniqueItems": True}, [("/", "uniqueItems")]),
        ({"type": "integer", "multipleOf": 3}, [("/", "multipleOf")]),
        ({"type": "string", "format": "iri"}, [("/", "format")]),
        ({"type": "string", "pattern": "(?=a)b"}, [("/", "pattern")]),
        ({"type": "string", "pattern": "^a*b*$", "maxLength": 3}, [("/", "maxLength")]),
        ({"oneOf": [{"minimum": 3}, {"maximum": 5}]}, [("/", "oneOf")]),
        ({"properties": {"a/b": {"not": {"type": "null"}}}}, [("/properties/a~1b", "not")]),
        ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, [("/", "minProperties")]),
        (
            {"type": "array", "prefixItems": [{"uniqueItems": True}, {"uniqueItems": True}]},
            [("/prefixItems/0", "uniqueItems"), ("/prefixItems/1", "uniqueItems")],
        ),
        (
            {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"if": {}}}},
            [("/$defs/x", "if")],
        ),
    ],
)
def test_what_is_left_out_is_reported_by_pointer(schema: Any, reported: list[tuple[str, str]]) -> None:
    assert left_out(schema) == reported


def test_a_language_that_cannot_count_so_far_says_so() -> None:
    schema = {
        "properties": {"a": {"type": "string", "maxLength": 2001}, "b": {"type": "array", "maxItems": 9000}}
    }
    assert left_out(schema) == []
    assert left_out(schema, most_counted=2000) == [
        ("/properties/a", "maxLength"),
        ("/properties/b", "maxItems"),
    ]
    spec = ToolSpec("t", "", {"type": "object", **schema})
    assert [str(each) for each in enforceable(spec, "gbnf")[1]] == [
        "tool 't': 'maxLength' at /properties/a is checked after the turn",
        "tool 't': 'maxItems' at /properties/b is checked after the turn",
    ]


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"properties": {"a": {"pattern": "^hi(!$"}}}, "/properties/a"),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}}, "/properties/a"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "/properties/a"),
        ({"properties": {"a": {"type": "text"}}}, "/properties/a"),
        ({"properties": {"a": {"items": [1]}}}, "/properties/a/items"),
        (
            {"allOf": [{"patternProperties": {"(": {}}}, {"properties": {"a": {}}}]},
            r"/allOf/0/patternProperties/\(",
        ),
    ],
)
def test_a_broken_schema_is_named_by_tool_and_pointer(schema: Any, pointer: str) -> None:
    with pytest.raises(GrammarError, match=f"tool 't' can't be enforced at {pointer}: "):
        enforceable(ToolSpec("t", "", schema), "gbnf")


def test_an_endless_reference_is_an_error() -> None:
    endless = {"type": "object", "properties": {"next": {"$ref": "#/$defs/A"}}, "required": ["next"]}
    for schema in ({"$ref": "#/$defs/A"}, endless):
        with pytest.raises(GrammarError, match="no finite value"):
            enforceable(ToolSpec("t", "", {**endless, "$defs": {"A": schema}}), "gbnf")


GOOD_FORMATS = {
    "date": ["2031-02-28", "2024-02-29", "2000-02-29"],
    "time": ["04:05:06Z", "23:59:59.123+05:30"],
    "date-time": ["2031-02-03T04:05:06Z"],
    "duration": ["P1D", "PT1H", "P1Y2M3DT4H5M6S", "P2W"],
    "email": ["a@example.org", "a.b+c@x-y.example.org"],
    "hostname": ["a", "a.b", "x-1.example.org"],
    "ipv4": ["127.0.0.1", "255.255.255.255"],
    "ipv6": ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "fe80::1:2", "1:2:3:4:5:6:7::"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "uri": ["http://a.b/c?d=e#f", "urn:x", "http://[::1]:80/", "mailto:a@b"],
}
BAD_FORMATS = {
    "date": ["2031-02-29", "1900-02-29", "2031-13-01", "0000-01-01", "31-1-1"],
    "time": ["24:00:00Z", "04:05:06", "4 o'clock"],
    "date-time": ["yesterday", "2031-02-03", "2031-02-03 04:05:06Z"],
    "duration": ["P", "PT", "P1D2H"],
    "email": ["a", "a@", "@b", "a..b@c"],
    "hostname": ["-a", "a-", "a..b", "a_b"],
    "ipv4": ["256.1.1.1", "1.2.3", "01.2.3.4"],
    "ipv6": ["zz", "1:2:3", "1::2::3", "12345::"],
    "uuid": ["123"],
    "uri": ["a", "//a/b", "http://a b"],
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name: str) -> None:
    schema = {"type": "string", "format": name}
    assert all(accepts(schema, *GOOD_FORMATS[name]))
    assert not any(accepts(schema, *BAD_FORMATS[name]))
    checker = Draft202012Validator.FORMAT_CHECKER
    assert all(checker.conforms(text, name) for text in GOOD_FORMATS[name])


def test_most_formats_have_an_end() -> None:
    for name in set(FORMATS) - {"uri"}:
        assert lengths(parse(f"^(?:{FORMATS[name]})$"))[1] is not None

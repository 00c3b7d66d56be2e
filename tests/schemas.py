"""Tool schemas with values to try on them: what engines must agree on.

Made systematically: every kind of value that a schema can ask for, in every place where a tool's schema
may have it. Values stand in the order in which properties are declared; whether they fit is left to the
`jsonschema` package.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_DATES = {"type": "string", "format": "date"}
_POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x"],
}
_EITHER = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "maxLength": 3}]}
_SHAPES = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "radius": {"type": "number", "minimum": 0}},
            "required": ["kind", "radius"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"kind": {"const": "square"}, "side": {"type": "integer", "minimum": 1}},
            "required": ["kind", "side"],
            "additionalProperties": False,
        },
    ]
}

KINDS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"type": "string"}, ["", "a", 'q"\\/', "日本\n", 1, None]),
    ({"type": "string", "minLength": 2}, ["a", "ab", "😀😀", []]),
    ({"type": "string", "maxLength": 3}, ["", "abc", "日本語", "abcd"]),
    ({"type": "string", "minLength": 1, "maxLength": 1}, ["", "\t", "é", "ab"]),
    ({"type": "string", "pattern": "^[a-z]{2,4}$"}, ["a", "ab", "abcd", "abcde", "AB"]),
    ({"type": "string", "pattern": r"^\d{3}-\d{4}$"}, ["123-4567", "123-456", "x123-4567"]),
    ({"type": "string", "pattern": "b"}, ["b", "abc", "ac", "b\n"]),
    ({"type": "string", "pattern": "^(GET|PO(ST)?)$"}, ["GET", "POST", "PO", "PUT"]),
    ({"type": "string", "pattern": r"^\S+@\S+\.\w+$"}, ["a@b.c", "a b@c.d", "a@b"]),
    ({"type": "string", "pattern": "^(a|b)*c?$"}, ["", "abab", "abc", "cab"]),
    (_DATES, ["2031-02-03", "2031-13-03", "3rd of May"]),
    ({"type": "string", "format": "time"}, ["04:05:06Z", 4]),
    ({"type": "string", "format": "date-time"}, ["2031-02-03T04:05:06Z", None]),
    ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000", "123e4567"]),
    ({"type": "string", "format": "email"}, ["a@example.org", "a"]),
    ({"type": "string", "format": "ipv4"}, ["127.0.0.1", "256.0.0.1", "1.2.3"]),
    ({"type": "string", "format": "ipv6"}, ["::1", "1:2:3:4:5:6:7:8", "zz"]),
    ({"enum": ["red", "green", "日本"]}, ["red", "日本", "blue", 1]),
    ({"type": "string", "enum": ["a", 'b"', "c\\d"]}, ["a", 'b"', "c\\d", "c"]),
    ({"enum": [1, "1", None, True, [1], {"a": 1}]}, [1, "1", None, True, [1], {"a": 1}, 2, False, []]),
    ({"const": "a/b"}, ["a/b", "a"]),
    ({"const": {"a": [1, {"b": None}]}}, [{"a": [1, {"b": None}]}, {"a": []}]),
    ({"type": "integer"}, [0, -1, 10**20, 1.5, "1"]),
    ({"type": "integer", "minimum": 0}, [0, 1, 999, -1]),
    (
        {"type": "integer", "minimum": -3, "maximum": 9007199254740991},
        [-3, 9007199254740991, -4, 9007199254740992],
    ),
    ({"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 1000}, [11, 999, 10, 1000]),
    ({"type": "integer", "maximum": -5}, [-5, -123, -4, 0]),
    ({"type": "number"}, [0, -1.5, 1e-7, 12345.678, "1"]),
    ({"type": "number", "minimum": 0, "maximum": 1}, [0, 0.5, 1, 1.01, -0.5]),
    ({"type": "number", "exclusiveMinimum": 0}, [0.001, 7, 0, -1]),
    ({"type": "number", "minimum": -2.5, "maximum": 2.25}, [-2.5, 2.25, 2.26, -2.51, 0.125]),
    ({"type": "boolean"}, [True, False, 0, "true"]),
    ({"type": "null"}, [None, False]),
    ({"type": ["string", "null"]}, ["a", None, 1]),
    ({"type": ["integer", "string", "null"], "maximum": 5}, [5, 6, "6", None, []]),
    (_EITHER, [1, "abc", 0, "abcd", None]),
    ({"oneOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}, [1, [1], ["a"], "a"]),
    ({"allOf": [{"type": "integer", "minimum": 1}, {"maximum": 5}]}, [1, 5, 0, 6]),
    ({"type": "array"}, [[], [1, "a", None], {}]),
    ({"type": "array", "items": {"type": "integer"}}, [[], [1], [1, 2, 3], ["a"], 1]),
    ({"type": "array", "items": {"type": "string"}, "minItems": 1}, [["a"], ["a", "b"], [], [1]]),
    ({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, [[], [True, False], [True] * 3]),
    ({"type": "array", "items": _DATES, "minItems": 2, "maxItems": 2}, [["2031-02-03"] * 2, ["2031-02-03"]]),
    (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
        [[], [1], [1, "a"], ["a"], [1, "a", 2]],
    ),
    (
        {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "minItems": 2},
        [[1, None], [1, None, None], [1], [1, 1]],
    ),
    ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, [[[1], []], [1], [["a"]]]),
    ({"type": "object"}, [{}, {"a": 1, "b": [None]}, []]),
    (_POINT, [{"x": 1}, {"x": 1, "y": 2}, {"y": 2}, {"x": "1"}, {"x": 1, "z": 1}]),
    (
        {"type": "object", "properties": {"a": {}, "b": {"type": "null"}, "c": {}}},
        [{}, {"a": 1}, {"c": []}, {"a": {}, "b": None, "c": 1}, {"b": 1}, {"d": 1}],
    ),
    (
        {"type": "object", "properties": {"日本": {"type": "integer"}, 'q"': {}}, "required": ['q"']},
        [{"日本": 1, 'q"': 2}, {'q"': 2}, {"日本": 1}],
    ),
    (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        [{}, {"a": 1}, {"a": 1, "b\n": 2}, {"a": "x"}],
    ),
    (
        {
            "type": "object",
            "properties": {"ab": {"type": "null"}},
            "additionalProperties": {"type": "integer"},
        },
        [{"ab": None, "a": 1, "abc": 2}, {"a": 1}, {"ab": 1}, {"ab": None, "a": None}],
    ),
    ({"type": "object", "properties": {}}, [{}, {"a": 1}]),
    (
        {"type": "object", "properties": {"p": _POINT, "q": _POINT}, "required": ["p"]},
        [{"p": {"x": 1}}, {"p": {"x": 1}, "q": {"x": 2, "y": 3}}, {"q": {"x": 1}}, {"p": {}}],
    ),
    (
        _SHAPES,
        [{"kind": "circle", "radius": 0.5}, {"kind": "square", "side": 1}, {"kind": "circle", "side": 1}],
    ),
    ({}, [None, 1, "a", [{}], {"a": [True, 1.5]}]),
    ({"description": "anything"}, [None, {"a": {}}]),
    ({"type": "integer", "title": "N", "default": 5, "examples": [1]}, [5, "5"]),
]


@dataclass(frozen=True)
class Case:
    name: str
    schema: dict[str, Any]
    arguments: tuple[dict[str, Any], ...]


def cases() -> Iterator[Case]:
    """Each kind of value as a required parameter, an optional one among others, inside an array, inside an
    object, and by reference."""
    for number, (kind, values) in enumerate(KINDS):
        yield Case(
            f"{number}-required",
            {"type": "object", "properties": {"v": kind}, "required": ["v"]},
            (*({"v": value} for value in values), {}),
        )
        yield Case(
            f"{number}-optional",
            {
                "type": "object",
                "properties": {"first": {"type": "null"}, "v": kind, "last": {"type": "integer"}},
                "required": ["last"],
            },
            ({"last": 1}, *({"v": v, "last": 1} for v in values), {"first": None, "v": values[0], "last": 2}),
        )
        yield Case(
            f"{number}-items",
            {"type": "object", "properties": {"v": {"type": "array", "items": kind}}, "required": ["v"]},
            ({"v": []}, *({"v": [value, values[0]]} for value in values)),
        )
        yield Case(
            f"{number}-referred",
            {
                "type": "object",
                "properties": {
                    "n": {"anyOf": [{"$ref": "#/$defs/K"}, {"type": "null"}]},
                    "o": {"$ref": "#/$defs/O"},
                },
                "required": ["n"],
                "$defs": {"K": kind, "O": {"type": "object", "properties": {"k": {"$ref": "#/$defs/K"}}}},
            },
            ({"n": None}, *({"n": value, "o": {"k": value}} for value in values), {"n": values[0], "o": 1}),
        )

"""Calls that leave the language: a tool as the schemas of those calls that remain.

A JSON Schema can't say "not these arguments" in a way that grammars hold, but what remains can be said
piece by piece: calls that differ in the first argument, then those that agree in it and differ in the
second, and so on. Strings differ by a pattern, integers by bounds, enums by what is left of them. Where
an argument's type allows none of these (an object, say), calls that differ only there go too; where no
piece is left, the tool goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from math import inf
from typing import Any

from localreact.grammar.lark import escaped
from localreact.grammar.merging import same
from localreact.grammar.validation import Validator
from localreact.types import JsonSchema, ToolSpec

_LONGEST = 150
"""A string is told apart by this many characters: those that begin like a longer one go with it."""

_NOT = "x-not"
"""The strings that a piece rules out, until they become a pattern."""


def without(
    tool: ToolSpec, calls: Iterable[Mapping[str, Any]], argument_max: int = 1000
) -> tuple[ToolSpec, ...]:
    """The tool in pieces that together take every call but those given.

    `argument_max` bounds strings whose schema has no bound of its own. Each piece has the tool's name.
    """
    pieces: list[JsonSchema] = [tool.parameters]
    for call in calls:
        pieces = [
            piece
            for schema in pieces
            for piece in (_differing(schema, call) if _fits(schema, call) else [schema])
        ]
    return tuple(replace(tool, parameters=_with_patterns(piece, argument_max)) for piece in pieces)


def _fits(schema: JsonSchema, call: Mapping[str, Any]) -> bool:
    ruled_out = any(
        isinstance(each, Mapping) and call.get(name) in each.get(_NOT, ())
        for name, each in schema.get("properties", {}).items()
    )
    return not ruled_out and Validator(schema).fits(dict(call))


def _differing(schema: JsonSchema, call: Mapping[str, Any]) -> Iterator[JsonSchema]:
    properties: dict[str, Any] = dict(schema.get("properties", {}))
    required = list(schema.get("required", ()))
    for name, each in list(properties.items()):
        if name not in call:
            yield {**schema, "properties": dict(properties), "required": [*required, name]}
            del properties[name]
            continue
        others = _other_values(each, call[name])
        for other in others:
            yield {**schema, "properties": {**properties, name: other}, "required": list(required)}
        if not others and name not in required:
            fewer = {key: value for key, value in properties.items() if key != name}
            yield {**schema, "properties": fewer, "required": list(required)}
        properties[name] = {"const": call[name]}
        if name not in required:
            required.append(name)


def _other_values(schema: Any, value: Any) -> list[JsonSchema]:
    """Schemas for what fits the schema and isn't the value, none fitting what another does; none at all
    where that can't be said."""
    if not isinstance(schema, Mapping) or schema.keys() & {"const", "anyOf", "oneOf", "allOf", "$ref"}:
        return []
    if "enum" in schema:
        left = [each for each in schema["enum"] if not same(each, value)]
        return [{**schema, "enum": left}] if left else []
    match schema.get("type"):
        case "boolean":
            return [{"enum": [not value]}]
        case "integer" if "multipleOf" not in schema:
            sides = [{**schema, "maximum": value - 1}, {**schema, "minimum": value + 1}]
            return [side for side in sides if _least(side) <= _most(side)]
        case "string" if not schema.keys() & {"pattern", "format"} and schema.get("minLength", 0) <= 1:
            return [{**schema, _NOT: [*schema.get(_NOT, ()), value]}]
    return []


def _least(integers: Mapping[str, Any]) -> float:
    least: float = max(integers.get("minimum", -inf), integers.get("exclusiveMinimum", -inf) + 1)
    return least


def _most(integers: Mapping[str, Any]) -> float:
    most: float = min(integers.get("maximum", inf), integers.get("exclusiveMaximum", inf) - 1)
    return most


def _with_patterns(schema: JsonSchema, argument_max: int) -> JsonSchema:
    properties = {
        name: _with_pattern(each, argument_max) for name, each in schema.get("properties", {}).items()
    }
    return {**schema, "properties": properties} if properties else schema


def _with_pattern(schema: Any, argument_max: int) -> Any:
    if not isinstance(schema, Mapping) or _NOT not in schema:
        return schema
    least, most = schema.get("minLength", 0), schema.get("maxLength", argument_max)
    return {"type": "string", "pattern": f"^(?:{other_strings(set(schema[_NOT]), least, most)})$"}


def other_strings(texts: Set[str], least: int, most: int) -> str:
    """A regex for every string of `least` (0 or 1) to `most` characters but these. (Some that hold NUL are
    left out with them.)"""
    ended = {text for text in texts if len(text) <= _LONGEST}
    cut = {text[:_LONGEST] for text in texts - ended}
    following: dict[str, set[str]] = {"": set()}
    for text in ended | cut:
        for at, character in enumerate(text):
            following.setdefault(text[:at], set()).add(character)
        following.setdefault(text, set())
    options = []
    for begun, characters in sorted(following.items()):
        if begun in cut:
            continue
        if begun not in ended and least <= len(begun) <= most:
            options.append(escaped(begun))
        if len(begun) < most:
            # llguidance takes escaped quotes and backslashes for a set that holds every control character, so
            # one that is to be without them goes without NUL too.
            no_others = sorted({*characters, *("\0" * (not characters.isdisjoint('"\\')))})
            other = f"[^{escaped(no_others)}]" if characters else r"[\s\S]"
            options.append(f"{escaped(begun)}{other}[\\s\\S]{{0,{most - len(begun) - 1}}}")
    return "|".join(options)

"""`allOf`, `anyOf`, references with neighbours: from combined schemas to plain ones, one of which must fit.

Merging is exact. Where two schemas can't be merged (two patterns, say), what stands in the way is reported
by its keyword, and the language gets wider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from localreact.grammar.validation import found
from localreact.types import JsonSchema

Plain = dict[str, Any]
"""A schema without `$ref`, `allOf`, `anyOf` and `oneOf` at its top."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_HIGHEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_LOWEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
MAX_BRANCHES = 64


def never(schema: Any) -> bool:
    """Whether nothing fits: `false`, or another way to write it."""
    return schema is False or (isinstance(schema, Mapping) and schema.get("not") in ({}, True))


def types_of(schema: JsonSchema) -> tuple[str, ...]:
    """The types that fit, as listed; all where none is."""
    kinds = schema.get("type", TYPES)
    return (kinds,) if isinstance(kinds, str) else tuple(kinds)


def merge(one: Plain, other: Plain, left_out: Callable[[str], None]) -> Plain | None:
    """The schema that fits where both fit; None where no value can.

    Subschemas that both have become an `allOf`, to be merged when they are looked at.
    """
    merged = {**other, **one}
    for key in one.keys() & other.keys():
        if key in _HIGHEST:
            merged[key] = max(one[key], other[key])
        elif key in _LOWEST:
            merged[key] = min(one[key], other[key])
        elif key == "required":
            merged[key] = [*one[key], *(name for name in other[key] if name not in one[key])]
        elif key == "type":
            merged[key] = list(_both_types(types_of(one), types_of(other)))
            if not merged[key]:
                return None
        elif key == "enum":
            merged[key] = [value for value in one[key] if any(same(value, each) for each in other[key])]
        elif key == "const" and not same(one[key], other[key]):
            return None
        elif key in ("pattern", "format", "multipleOf") and one[key] != other[key]:
            left_out(key)
    if "items" in merged or "prefixItems" in merged:
        _merge_items(merged, one, other)
    if merged.keys() & {"properties", "patternProperties", "additionalProperties"}:
        _merge_properties(merged, one, other, left_out)
    return merged


def same(one: Any, other: Any) -> bool:
    """Equality as JSON Schema has it: true isn't 1, 1.0 is."""
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def both(one: Any, other: Any) -> Any:
    """The subschema that fits where both fit."""
    if never(one) or never(other):
        return False
    if other in (True, {}) or one == other:
        return one
    return other if one in (True, {}) else {"allOf": [one, other]}


def _both_types(one: tuple[str, ...], other: tuple[str, ...]) -> Iterator[str]:
    for kind in one:
        if kind in other or (kind == "integer" and "number" in other):
            yield kind
        elif kind == "number" and "integer" in other:
            yield "integer"


def _merge_items(merged: Plain, one: Plain, other: Plain) -> None:
    heads = [schema.get("prefixItems", []) for schema in (one, other)]
    rests = [schema.get("items", True) for schema in (one, other)]
    length = max(map(len, heads))
    padded = [[*head, *[rest] * (length - len(head))] for head, rest in zip(heads, rests, strict=True)]
    if length:
        merged["prefixItems"] = [both(a, b) for a, b in zip(*padded, strict=True)]
    merged["items"] = both(*rests)


def _merge_properties(merged: Plain, one: Plain, other: Plain, left_out: Callable[[str], None]) -> None:
    """What one side says of all further names holds for the names that only the other side knows."""

    def of(name: str, schema: Plain) -> Any:
        if name in schema.get("properties", {}):
            return schema["properties"][name]
        matched = any(found(pattern, name) for pattern in schema.get("patternProperties", {}))
        return True if matched else schema.get("additionalProperties", True)

    def matching(pattern: str, schema: Plain) -> Any:
        patterns = schema.get("patternProperties", {})
        if pattern in patterns:
            return patterns[pattern]
        if patterns and schema.get("additionalProperties", True) not in (True, {}):
            left_out("patternProperties")  # which of its names the other side's patterns match is open
            return True
        return schema.get("additionalProperties", True)

    for key, part in (("properties", of), ("patternProperties", matching)):
        names = {**one.get(key, {}), **other.get(key, {})}
        if names:
            merged[key] = {name: both(part(name, one), part(name, other)) for name in names}
    if "additionalProperties" in merged:
        merged["additionalProperties"] = both(
            one.get("additionalProperties", True), other.get("additionalProperties", True)
        )


def apart(one: Plain, other: Plain) -> bool:
    """Whether surely no value fits both."""
    first, second = _values(one), _values(other)
    if first is not None and second is not None:
        return not any(same(a, b) for a in first for b in second)
    if not _kinds(one) & _kinds(other):
        return True
    if _kinds(one) & _kinds(other) - {"object"}:
        return False
    return _apart_objects(one, other) or _apart_objects(other, one)


def _apart_objects(one: Plain, other: Plain) -> bool:
    mine, theirs = one.get("properties", {}), other.get("properties", {})
    for name in one.get("required", ()):
        if name in theirs:
            parts = (mine.get(name, True), theirs[name])
            if name in other.get("required", ()) and all(map(_is_plain, parts)) and apart(*parts):
                return True
        elif never(other.get("additionalProperties", True)) and not other.get("patternProperties"):
            return True
    return False


def _is_plain(schema: Any) -> bool:
    return isinstance(schema, Mapping) and not schema.keys() & {"$ref", "allOf", "anyOf", "oneOf"}


def _values(schema: Plain) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _kinds(schema: Plain) -> set[str]:
    """The types that values may be of, with `number` for integers too."""
    values = _values(schema)
    if values is None:
        return {"number" if kind == "integer" else kind for kind in types_of(schema)}
    names = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}
    return {names.get(type(value), "number") for value in values}

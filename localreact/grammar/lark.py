"""Pieces of llguidance's Lark dialect: literals, and JSON Schema as a rule.

Source of the dialect: docs/syntax.md and docs/json_schema.md in guidance-ai/llguidance.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from localreact.errors import GrammarError
from localreact.grammar import patterns
from localreact.grammar.formats import patterns_of
from localreact.types import JsonSchema, ToolSpec, TurnSpec


def literal(text: str) -> str:
    """A Lark string literal (its escapes are JSON's, and it holds no raw DEL)."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def escaped(text: Iterable[str]) -> str:
    """A text, or the characters of a class, inside `/…/`; Python and ECMA-262 read it the same."""
    return "".join(
        f"\\u{ord(c):04x}" if c < " " else f"\\{c}" if c in r"\.+*?()|[]{}^$-&~#/" else c for c in text
    )


def json_rule(schema: JsonSchema, *, compact: bool = False) -> str:
    """A `%json` rule for values of the schema, with the one spacing that our turns have."""
    spacing = {
        "whitespace_flexible": False,
        "item_separator": "," if compact else ", ",
        "key_separator": ":" if compact else ": ",
    }
    return "%json " + json.dumps({**schema, "x-guidance": spacing}, ensure_ascii=False)


def bounded(schema: JsonSchema, max_length: int, language: str = "lark") -> dict[str, Any]:
    """The schema with `maxLength` on every string that it leaves open, and without properties that it
    doesn't name, unless it asks for some: a model can't choose those well, and the grammar would let it name
    one twice.

    Where schemas are combined (`allOf`, or a reference beside properties), what one part doesn't name
    another may, and objects stay as they are. What stays open too are the strings inside a value of any type
    and, where the language has no "and", those with a pattern in which several parts may grow.
    """
    bounds: dict[str, Any] = _bounded(schema, max_length, language, close=not _combines(schema))
    return bounds


def parameters(tool: ToolSpec, spec: TurnSpec, language: str) -> list[tuple[str, dict[str, Any], bool]]:
    """A tool's parameters one by one: names, bounded schemas, and whether each is needed."""
    schema = bounded(tool.parameters, spec.argument_max, language)
    shared: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    required = schema.get("required", ())
    return [
        (name, {**each, **shared}, name in required) for name, each in schema.get("properties", {}).items()
    ]


def _bounded(schema: Any, max_length: int, language: str, close: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    result = dict(schema)
    for key in ("properties", "$defs", "definitions", "patternProperties"):
        if key in result:
            result[key] = {
                name: _bounded(each, max_length, language, close) for name, each in result[key].items()
            }
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if key in result:
            result[key] = [_bounded(each, max_length, language, close) for each in result[key]]
    for key in ("items", "additionalProperties"):
        if result.get(key):  # an empty schema, for any further value, stays
            result[key] = _bounded(result[key], max_length, language, close)
    if _is_open(result, max_length, language):
        result["maxLength"] = max(max_length, result.get("minLength", 0))
    names = result.get("properties", {})
    enough = set(result.get("required", ())) <= set(names) and result.get("minProperties", 0) <= len(names)
    if close and "properties" in result and enough:
        result.setdefault("additionalProperties", False)
    return result


_SETTLED = {"maxLength", "enum", "const", "not", "$ref", "allOf", "anyOf", "oneOf"}


def _is_open(schema: Mapping[str, Any], max_length: int, language: str) -> bool:
    """Whether a string that fits may have any length, and a bound of it can be held: servers have compilers
    of their own, which may know none beside a pattern, or none without a type."""
    kinds = schema.get("type", "object" if language == "json_schema" else "string")
    if schema.keys() & _SETTLED or "string" not in ([kinds] if isinstance(kinds, str) else kinds):
        return False
    try:
        trees = [patterns.parse(each) for each in patterns_of(schema)]
    except GrammarError:
        return language == "lark"
    if not trees or language == "lark":
        return all(patterns.lengths(tree)[1] is None for tree in trees)
    least = schema.get("minLength", 0)
    bounds = [patterns.limited(tree, least, max(max_length, least)) for tree in trees]
    return language != "json_schema" and None not in bounds and bounds != trees


def _combines(schema: Any) -> bool:
    """Whether one object may have to fit several subschemas."""
    if isinstance(schema, list):
        return any(map(_combines, schema))
    if not isinstance(schema, Mapping):
        return False
    here = "allOf" in schema or ("properties" in schema and bool(schema.keys() & {"$ref", "anyOf", "oneOf"}))
    return here or any(map(_combines, schema.values()))

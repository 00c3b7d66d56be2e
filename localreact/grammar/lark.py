"""Pieces of llguidance's Lark dialect: literals, and JSON Schema as a rule.

Source of the dialect: docs/syntax.md and docs/json_schema.md in guidance-ai/llguidance.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

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


def bounded(schema: JsonSchema, max_length: int) -> dict[str, Any]:
    """The schema with `maxLength` on every string that it leaves open, and without properties that it
    doesn't name, unless it asks for some: a model can't choose those well, and the grammar would let it name
    one twice.

    Where schemas are combined (`allOf`, or a reference beside properties), what one part doesn't name
    another may, and objects stay as they are.
    """
    bounds: dict[str, Any] = _bounded(schema, max_length, close=not _combines(schema))
    return bounds


def parameters(tool: ToolSpec, spec: TurnSpec) -> list[tuple[str, dict[str, Any], bool]]:
    """A tool's parameters one by one: names, bounded schemas, and whether each is needed."""
    schema = bounded(tool.parameters, spec.argument_max)
    shared: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    required = schema.get("required", ())
    return [
        (name, {**each, **shared}, name in required) for name, each in schema.get("properties", {}).items()
    ]


def _bounded(schema: Any, max_length: int, close: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    result = dict(schema)
    for key in ("properties", "$defs", "definitions", "patternProperties"):
        if key in result:
            result[key] = {name: _bounded(each, max_length, close) for name, each in result[key].items()}
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if key in result:
            result[key] = [_bounded(each, max_length, close) for each in result[key]]
    for key in ("items", "additionalProperties"):
        if key in result:
            result[key] = _bounded(result[key], max_length, close)
    kinds = result.get("type")
    is_string = kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
    if is_string and not result.keys() & {"maxLength", "enum", "const", "format", "pattern"}:
        result["maxLength"] = max(max_length, result.get("minLength", 0))
    names = result.get("properties", {})
    enough = set(result.get("required", ())) <= set(names) and result.get("minProperties", 0) <= len(names)
    if close and "properties" in result and enough:
        result.setdefault("additionalProperties", False)
    return result


def _combines(schema: Any) -> bool:
    """Whether one object may have to fit several subschemas."""
    if isinstance(schema, list):
        return any(map(_combines, schema))
    if not isinstance(schema, Mapping):
        return False
    here = "allOf" in schema or ("properties" in schema and bool(schema.keys() & {"$ref", "anyOf", "oneOf"}))
    return here or any(map(_combines, schema.values()))

"""Pieces of llguidance's Lark dialect: literals, and JSON Schema as a rule.

Source of the dialect: docs/syntax.md and docs/json_schema.md in guidance-ai/llguidance.
"""

from __future__ import annotations

import json
from typing import Any

from localreact.types import JsonSchema


def literal(text: str) -> str:
    """A Lark string literal (its escapes are JSON's)."""
    return json.dumps(text, ensure_ascii=False)


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
    doesn't name: a model can't choose those well, and the grammar would let it name one twice."""
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions", "patternProperties") and isinstance(value, dict):
            result[key] = {name: _bounded(each, max_length) for name, each in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            result[key] = [_bounded(each, max_length) for each in value]
        elif key in ("items", "additionalProperties"):
            result[key] = _bounded(value, max_length)
        else:
            result[key] = value
    kinds = result.get("type")
    is_string = kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
    if is_string and not result.keys() & {"maxLength", "enum", "const", "format", "pattern"}:
        result["maxLength"] = max(max_length, result.get("minLength", 0))
    if "properties" in result:
        result.setdefault("additionalProperties", False)
    return result


def _bounded(schema: Any, max_length: int) -> Any:
    return bounded(schema, max_length) if isinstance(schema, dict) else schema

"""What clients send as JSON Schemas: checked, bounded, and closed against keys that nobody declared."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from jsonschema.exceptions import SchemaError

from localreact.grammar import validation
from localreact.grammar.schema import subschemas
from localreact.serve.ask import Ask, ClientError
from localreact.serve.settings import Caps
from localreact.types import JsonSchema

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
RESERVED = ("finish",)


def check_counts(ask: Ask, caps: Caps) -> None:
    """
    Raises:
        ClientError: 422, more than the caps allow.
    """
    for count, most, what in (
        (len(ask.messages), caps.messages, "messages"),
        (len(ask.tools), caps.tools, "tools"),
        (len(ask.stops), caps.stops, "stop"),
        (ask.n, caps.choices, "n"),
    ):
        if count > most:
            raise ClientError(422, f"{what}: at most {most}, not {count}", what, "too_many")


def check(ask: Ask, caps: Caps) -> None:
    """What takes time, with large schemas.

    Raises:
        ClientError: 400, a tool, a choice or a schema that is none; 422, one beyond the caps.
    """
    names = [tool.name for tool in ask.tools]
    for number, tool in enumerate(ask.tools):
        at = f"tools/{number}"
        if not _NAME.fullmatch(tool.name) or tool.name.lower() in RESERVED:
            raise ClientError(
                400,
                f"a tool can't be named {tool.name!r}: names are 1 to 64 letters, digits, '_', '-' or '.', "
                "and 'finish' is taken",
                f"{at}/name",
            )
        if tool.name in names[:number]:
            raise ClientError(400, f"two tools are named {tool.name!r}", f"{at}/name")
        check_schema(tool.parameters, f"{at}/parameters", caps, f"tool {tool.name!r}: ")
        if tool.parameters.get("type") not in ("object", ["object"]):
            raise ClientError(
                400, f"tool {tool.name!r}: its parameters have to be an object", f"{at}/parameters/type"
            )
    if ask.tool_choice == "named" and ask.tool not in names:
        said = f"the tool choice names {ask.tool!r}; the tools are: {', '.join(names) or 'none'}"
        raise ClientError(400, said, "tool_choice")
    if ask.tool_choice == "required" and not names:
        raise ClientError(400, "a tool call is required, and there is no tool", "tool_choice")
    if ask.answer is not None:
        check_schema(ask.answer, "response_format", caps, "the answer: ")
    if (held := ask.held) is not None:
        if len(json.dumps(held.value, ensure_ascii=False)) > caps.schema_bytes:
            said = f"{held.param}: more than {caps.schema_bytes} characters"
            raise ClientError(422, said, held.param, "too_many")
        if held.kind == "json":
            check_schema(held.value, held.param, caps, "")


def check_schema(schema: JsonSchema, at: str, caps: Caps, whose: str) -> None:
    if _depth(schema) > caps.schema_depth:
        raise ClientError(422, f"{whose}a schema nested deeper than {caps.schema_depth} levels", at)
    if len(json.dumps(schema, ensure_ascii=False)) > caps.schema_bytes:
        raise ClientError(422, f"{whose}a schema of more than {caps.schema_bytes} characters", at)
    try:
        validation.check_schema(schema)
    except SchemaError as error:
        where = "".join(f"/{each}" for each in error.path)
        raise ClientError(
            400, f"{whose}no JSON Schema at {where or '/'}: {error.message[:200]}", at + where
        ) from error
    for path, why in filter(None, (validation.outward(schema), validation.endless(schema))):
        where = "".join(f"/{each}" for each in path)
        raise ClientError(
            400,
            f"{whose}what is at {where} can't be checked here: {why}",
            at + where,
            "not_enforceable",
        )


def parameters(given: Any) -> dict[str, Any]:
    """A function's parameters, as most clients mean them: missing ones are none, and without a type they
    are an object's."""
    if not given:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **given}


def closed_schema(schema: JsonSchema) -> JsonSchema:
    """The schema with `additionalProperties: false` where properties are declared and nothing is said of
    others: JSON Schema would admit any, and a model would write some. What is written so fits the schema as
    it was given."""
    # Parts of a whole: closing each would leave nothing.
    if any("allOf" in each for _, each in subschemas(schema)):
        return schema
    found: JsonSchema = _closed(schema)
    return found


_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "prefixItems")


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, Mapping):
            found[key] = {name: _closed(each) for name, each in value.items()}
        elif key in _LISTS and isinstance(value, list):
            found[key] = [_closed(each) for each in value]
        else:
            found[key] = _closed(value) if key == "items" else value
    says = schema.keys() & {"additionalProperties", "patternProperties", "anyOf", "oneOf", "$ref"}
    if isinstance(schema.get("properties"), Mapping) and not says:
        found["additionalProperties"] = False
    return found


def _depth(value: Any, limit: int = 200) -> int:
    if not limit or not isinstance(value, Mapping | list):
        return 0
    inside = value.values() if isinstance(value, Mapping) else value
    return 1 + max((_depth(each, limit - 1) for each in inside), default=0)

"""A turn of the json protocol as one JSON Schema, for servers that enforce those.

Fields stand in the order that the spelling gives them, which such servers keep. What the server's own
compiler leaves of a tool's schema isn't known here: arguments are checked after the turn, as always.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from localreact.grammar.lark import bounded
from localreact.protocols.base import answer_schema, turn_rules
from localreact.types import JsonSchema, TurnGrammar, TurnSpec


class _Schema(dict[str, Any]):
    """A schema, told apart from literal values."""


def turn_schema(
    call_fields: Callable[[Any, str, Any], Mapping[str, Any]],
    finish_fields: Callable[[Any, Mapping[str, Any]], Mapping[str, Any]],
    spec: TurnSpec,
) -> TurnGrammar:
    """One of several objects; `call_fields` and `finish_fields` write their fields around the schemas
    of thought, arguments and ending.

    Raises:
        GrammarError: nothing at all is legal.
    """
    turn_rules(spec)  # something has to be legal
    definitions: dict[str, Any] = {}
    thought = _string(spec.thought_min, spec.thought_max)
    turns = []
    for number, tool in enumerate(spec.tools):
        parameters = tool.parameters
        if any(name == tool.name for name, _ in spec.excluded):
            parameters = _portable(parameters)
        arguments = bounded(parameters, spec.argument_max, "json_schema")
        turns.append(call_fields(thought, tool.name, _inline(arguments, f"arguments_{number}", definitions)))
    if spec.answer:
        answer = _inline(answer_schema(spec, "json_schema"), "answer", definitions)
        turns.append(finish_fields(thought, {"answer": answer}))
    if spec.insufficient:
        missing = _string(1, spec.answer_max)
        turns.append(finish_fields(thought, {"status": "insufficient", "missing": missing}))
    objects = [_object(fields) for fields in turns]
    schema = objects[0] if len(objects) == 1 else {"anyOf": objects}
    if definitions:
        schema = {**schema, "$defs": definitions}
    return TurnGrammar("json_schema", json.dumps(schema, ensure_ascii=False))


def _portable(parameters: JsonSchema) -> JsonSchema:
    """A piece of a tool without the patterns that take calls out of it (`grammar/exclude.py`): few servers
    compile those, and a wider language costs at most a turn, since excluded calls aren't executed."""
    properties = {
        name: {"type": "string"} if _takes_out(each) else each
        for name, each in parameters.get("properties", {}).items()
    }
    return {**parameters, "properties": properties} if properties else parameters


def _takes_out(schema: Any) -> bool:
    return (
        isinstance(schema, Mapping)
        and schema.keys() == {"type", "pattern"}
        and str(schema["pattern"]).startswith("^(?:")
    )


def _string(least: int, most: int) -> _Schema:
    return _Schema(type="string", minLength=least, maxLength=most)


def _object(fields: Mapping[str, Any]) -> dict[str, Any]:
    properties = {name: _value(value) for name, value in fields.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _value(value: Any) -> Mapping[str, Any]:
    if isinstance(value, _Schema):
        return value
    return _object(value) if isinstance(value, Mapping) else {"const": value}


def _inline(schema: dict[str, Any], name: str, definitions: dict[str, Any]) -> _Schema:
    """The schema where it is used; one with references goes among the definitions as a whole, so that
    they can point into it."""
    if not _refers(schema):
        return _Schema(schema)
    definitions[name] = _moved(schema, f"#/$defs/{name}")
    return _Schema({"$ref": f"#/$defs/{name}"})


_MAPS = ("properties", "patternProperties", "$defs", "definitions")


def _refers(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_refers, schema))
    if not isinstance(schema, Mapping):
        return False
    return isinstance(schema.get("$ref"), str) or any(map(_refers, schema.values()))


def _moved(schema: Any, to: str) -> Any:
    """The schema with its references as they are after a move."""
    if isinstance(schema, list):
        return [_moved(each, to) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            result[key] = to + value[1:]
        elif key in _MAPS and isinstance(value, Mapping):
            result[key] = {name: _moved(each, to) for name, each in value.items()}
        elif key in ("enum", "const"):
            result[key] = value
        else:
            result[key] = _moved(value, to)
    return result

"""JSON Schema as far as a grammar can hold it: what is left out is reported, what is broken is named.

Leaving a keyword out widens the language, never narrows it, and arguments are validated against the
whole schema after the turn. So a relaxation costs at most a turn, and is no hole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llguidance import LLMatcher

from localreact.errors import GrammarError
from localreact.grammar import gbnf, patterns
from localreact.grammar.formats import FORMATS
from localreact.grammar.lark import bounded
from localreact.grammar.merging import never
from localreact.grammar.rulebook import pointer_token
from localreact.grammar.scalars import SchemaError
from localreact.grammar.schema_rules import schema_rules
from localreact.types import JsonSchema, ToolSpec

_MOST_COUNTED = {"gbnf": gbnf.MOST_COUNTED, "slots": None, "regex": None}
"""The languages that are written from rules (`schema_rules.py`), and how far each can count."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What llguidance's schema compiler enforces (docs/json_schema.md in guidance-ai/llguidance), then what
# only says something about a schema.
_ENFORCED = _words(
    """$ref $defs definitions type enum const anyOf oneOf allOf properties required additionalProperties
    patternProperties minProperties maxProperties items prefixItems minItems maxItems minLength maxLength
    pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"""
)
_ANNOTATIONS = _words(
    """title description default examples deprecated readOnly writeOnly $schema $id $comment $anchor
    contentMediaType contentEncoding"""
)

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A keyword that the grammar doesn't hold; arguments are checked against it after the turn. An answer's
    schema is that of a tool named finish."""

    tool: str
    pointer: str
    keyword: str

    def __str__(self) -> str:
        whose = "the answer" if self.tool == "finish" else f"tool {self.tool!r}"
        return f"{whose}: {self.keyword!r} at {self.pointer} is checked after the turn"


def enforceable(tool: ToolSpec, language: str = "lark") -> tuple[ToolSpec, list[Relaxation]]:
    """The tool with the part of its schema that a grammar in this language can hold, and what was left out.

    Raises:
        GrammarError: what is left can't be compiled, or no finite value satisfies it; the message
            names the tool and a JSON pointer into its schema.
    """
    if language in ("lark", "json_schema"):  # of the latter each server has a compiler of its own
        return _enforceable_by_llguidance(tool)
    _check_finite(tool.name, tool.parameters)
    try:
        _, left_out = schema_rules(_compiled(tool.parameters, language), most_counted=_MOST_COUNTED[language])
    except SchemaError as error:
        raise _not_enforceable(tool.name, error.pointer, error.why) from error
    return tool, [Relaxation(tool.name, pointer, keyword) for pointer, keyword in left_out]


def all_enforceable(
    tools: Sequence[ToolSpec], languages: Sequence[str]
) -> tuple[tuple[ToolSpec, ...], list[Relaxation]]:
    """`enforceable` for each tool in the first of the languages; as they are where there is none."""
    if not languages:
        return tuple(tools), []
    pairs = [enforceable(tool, languages[0]) for tool in tools]
    return tuple(spec for spec, _ in pairs), [each for _, left_out in pairs for each in left_out]


def _enforceable_by_llguidance(tool: ToolSpec) -> tuple[ToolSpec, list[Relaxation]]:
    left_out: list[Relaxation] = []

    def relax(schema: Any, pointer: str) -> Any:
        if pointer and never(schema):
            return False
        if not isinstance(schema, Mapping):
            return schema
        kept: dict[str, Any] = {}
        for key, value in schema.items():
            unknown_format = key == "format" and value not in FORMATS
            if key in _ANNOTATIONS:
                continue
            if key not in _ENFORCED or unknown_format:
                left_out.append(Relaxation(tool.name, pointer or "/", key))
            elif key in _MAPS:
                kept[key] = {
                    name: relax(each, f"{pointer}/{key}/{pointer_token(name)}")
                    for name, each in value.items()
                }
            elif key in _LISTS:
                kept[key] = [relax(each, f"{pointer}/{key}/{i}") for i, each in enumerate(value)]
            elif key in _SINGLE:
                kept[key] = relax(value, f"{pointer}/{key}")
            else:
                kept[key] = value
            if (key == "pattern" and patterns.takes_escapes(value)) or (
                key == "patternProperties" and any(map(patterns.takes_escapes, value))
            ):
                left_out.append(Relaxation(tool.name, pointer or "/", key))
        if "oneOf" in kept and problem({**_defs(tool.parameters), **kept}):
            kept["anyOf"] = kept.pop("oneOf")
            left_out.append(Relaxation(tool.name, pointer or "/", "oneOf"))
        return kept

    _check_finite(tool.name, tool.parameters)
    parameters = relax(tool.parameters, "")
    if problem(compiled := _compiled(parameters, "lark")):
        raise _not_enforceable(tool.name, *_blame(compiled))
    return replace(tool, parameters=parameters), left_out


def _compiled(schema: JsonSchema, language: str) -> dict[str, Any]:
    """The schema as a turn's grammar has it; no bound of strings changes whether it can be compiled."""
    return bounded(schema, 1000, language)


def _not_enforceable(tool: str, pointer: str, why: str) -> GrammarError:
    return GrammarError(
        f"the schema of tool {tool!r} can't be enforced at {pointer or '/'}: {why}",
        "Change the schema, or leave the tool out.",
    )


def _check_finite(tool: str, schema: Mapping[str, Any]) -> None:
    if _finite(schema):
        return
    endless = (p for p, each in subschemas(schema) if not _finite({**_defs(schema), **each}))
    where = max(endless, key=len)
    raise GrammarError(
        f"the schema of tool {tool!r} can't be satisfied at {where or '/'}: "
        "no finite value fits (a reference to itself without end, or false)",
        "Change the schema, or leave the tool out.",
    )


def problem(schema: Mapping[str, Any]) -> str:
    """Why the schema can't be compiled; empty where it can."""
    failed, messages = LLMatcher.validate_grammar_with_warnings(
        LLMatcher.grammar_from_json_schema(json.dumps(schema))
    )
    return " ".join(messages[0].split()) if failed else ""


def _blame(schema: Mapping[str, Any]) -> tuple[str, str]:
    """The innermost subschema that can't be compiled by itself, as a pointer, and why."""
    found = ("", problem(schema))
    for pointer, each in subschemas(schema):
        if len(pointer) > len(found[0]) and (why := problem({**_defs(schema), **each})):
            found = (pointer, why)
    return found


def subschemas(schema: Any, pointer: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every subschema with its pointer, the schema itself first."""
    if not isinstance(schema, Mapping):
        return
    yield pointer, schema
    for key in _MAPS:
        for name, each in schema.get(key, {}).items():
            yield from subschemas(each, f"{pointer}/{key}/{pointer_token(name)}")
    for key in _LISTS:
        for index, each in enumerate(schema.get(key, ())):
            yield from subschemas(each, f"{pointer}/{key}/{index}")
    for key in _SINGLE:
        yield from subschemas(schema.get(key), f"{pointer}/{key}")


def _finite(schema: Mapping[str, Any]) -> bool:
    """Whether some finite value may satisfy the schema, as far as its references go: the least fixed
    point of "everything that must be there is finite"."""
    known: dict[str, bool] = {}

    def finite(each: Any) -> bool:
        if never(each) or not isinstance(each, Mapping):
            return not never(each)
        if not known.get(each.get("$ref", ""), True):  # a dead reference is for the compiler to name
            return False
        if "enum" in each or "const" in each:
            return True
        if not all(finite(part) for part in each.get("allOf", ())):
            return False
        for key in ("anyOf", "oneOf"):
            if each.get(key) and not any(finite(part) for part in each[key]):
                return False
        kinds = each.get("type")
        if kinds in ("object", ["object"]):
            properties = each.get("properties", {})
            return all(finite(properties[name]) for name in each.get("required", ()) if name in properties)
        if kinds in ("array", ["array"]) and each.get("minItems", 0) > len(each.get("prefixItems", ())):
            return finite(each.get("items", True))
        return True

    definitions: dict[str, Any] = {"#": schema}
    for key in ("$defs", "definitions"):
        definitions |= {f"#/{key}/{name}": each for name, each in schema.get(key, {}).items()}
    known = dict.fromkeys(definitions, False)
    changed = True
    while changed:
        changed = False
        for reference, each in definitions.items():
            if not known[reference] and finite(each):
                known[reference] = changed = True
    return known["#"]


def _defs(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}

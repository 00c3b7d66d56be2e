"""What may stand in the brackets of the bracket protocol, and what the call protocol takes keywords of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from localreact.engines import gbnf_text
from localreact.engines.llguidance import LLGuidanceEngine
from localreact.engines.outlines import OutlinesEngine
from localreact.errors import GrammarError
from localreact.grammar.schema import enforceable
from localreact.protocols import protocol
from localreact.types import ToolSpec, TurnSpec

LANGUAGES = ("lark", "gbnf", "slots")
TAKES = {
    "lark": LLGuidanceEngine.over_bytes().accepts,
    "gbnf": gbnf_text.accepts,
    "slots": OutlinesEngine.over_bytes().accepts,
}


def tool(schema: Any, **more: Any) -> ToolSpec:
    properties = {"v": schema} if schema is not None else {}
    return ToolSpec("t", "", {"type": "object", "properties": properties, **more})


TEXTS = [
    "a",
    "b",
    "ab",
    "aab",
    "abcdef",
    "AB-12",
    "2031-02-03",
    "2031-13-45",
    "a/b",
    "a\\b",
    'a"b',
    " a",
    "日本",
]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^a$|^b$"},
        {"pattern": "a"},
        {"pattern": r"^a\/b$"},
        {"pattern": r"^a\\/b$"},
        {"pattern": "^a/b$"},
        {"pattern": r"^[A-Z]{2}-\d+$", "maxLength": 5},
        {"pattern": "^[ab]+$", "maxLength": 2},
        {"pattern": "^[ab]+$", "minLength": 2},
        {"pattern": "^[ab]*$"},
        {"pattern": r'^a[\\"]b$'},
        {"format": "date"},
        {"format": "date", "pattern": "^2031-02"},
        {"enum": ["a", "ab", "a]b", "日本", 3]},
        {"enum": ["a", "ab", "abcdef"], "maxLength": 2},
        {"enum": ["a", "ab", "b"], "pattern": "b"},
        {"const": "ab"},
        {"enum": ["2031-02-03", "a"], "format": "date"},
        {"minLength": 3},
        {"maxLength": 2},
    ],
    ids=json.dumps,
)
def test_a_bracket_argument_is_held_to_its_schema_in_every_language(
    schema: dict[str, Any], language: str
) -> None:
    if language != "lark" and {"format", "pattern"} <= schema.keys():
        schema = {"format": schema["format"]}  # both at once are reported there
    schema = {"type": "string", **schema}
    spec, left_out = enforceable(tool(schema, required=["v"]), language)
    assert not left_out
    grammar = protocol("bracket").grammar(TurnSpec((spec,), answer=False), language)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for text in TEXTS:
        taken = TAKES[language](grammar, f"Thought: I call the tool.\nAction: t[{text}]")
        assert taken == validator.is_valid(text), text
    assert not TAKES[language](grammar, "Thought: I call the tool.\nAction: t[]")


def test_colons_are_told_apart_only_where_a_grammar_knows_and() -> None:
    spec = tool({"type": "string", "pattern": "^https?://[a-z.]+$"}, required=["v"])
    grammar = protocol("bracket").grammar(TurnSpec((spec,), answer=False), "lark")
    for text, legal in (("https://example.org", True), ("http:/x", False)):
        assert TAKES["lark"](grammar, f"Thought: I call the tool.\nAction: t[{text}]") == legal
    for language in ("gbnf", "slots"):
        with pytest.raises(GrammarError, match=r"tool 't' .* at /properties/v: no text fits"):
            protocol("bracket").grammar(TurnSpec((spec,), answer=False), language)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "string", "anyOf": [{"const": "a"}, {"const": "b"}]}, "/properties/v/anyOf"),
        ({"type": "string", "allOf": [{"pattern": "a"}]}, "/properties/v/allOf"),
        ({"type": "string", "$ref": "#/$defs/A"}, "/properties/v/\\$ref"),
        ({"type": "string", "enum": ["a]b"]}, "/properties/v"),
        ({"type": "string", "enum": ["abc"], "maxLength": 2}, "/properties/v"),
        ({"type": "string", "pattern": "^$"}, "/properties/v"),
    ],
)
def test_what_brackets_cannot_hold_is_refused_by_tool_and_pointer(
    schema: dict[str, Any], pointer: str, language: str
) -> None:
    spec = tool(schema, required=["v"], **{"$defs": {"A": {"enum": ["a"]}}})
    with pytest.raises(GrammarError, match=f"tool 't' can't be called in the bracket protocol at {pointer}"):
        protocol("bracket").grammar(TurnSpec((spec,), answer=False), language)


STRING = {"type": "string"}


@pytest.mark.parametrize("name", ["bracket", "call"])
@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"b": STRING}}}}, "\\$ref"),
        ({"anyOf": [{"properties": {"b": STRING}}, {"required": ["v"]}]}, "anyOf"),
        ({"allOf": [{"required": ["v"]}]}, "allOf"),
        ({"required": ["v", "b"]}, "required"),
        ({"minProperties": 1}, "minProperties"),
        ({"maxProperties": 0}, "maxProperties"),
        ({"patternProperties": {"^x": STRING}}, "patternProperties"),
    ],
)
def test_arguments_that_are_not_told_by_properties_alone_are_refused(
    more: dict[str, Any], pointer: str, name: str
) -> None:
    with pytest.raises(GrammarError, match=f"tool 't' can't be called in the {name} protocol at /{pointer}"):
        protocol(name).grammar(TurnSpec((tool(STRING, **more),)), "lark")


@pytest.mark.parametrize("reference", ["#", "#/properties/w"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_keyword_refers_to_definitions_only(language: str, reference: str) -> None:
    spec = ToolSpec(
        "t", "", {"type": "object", "properties": {"v": {"items": {"$ref": reference}}, "w": STRING}}
    )
    with pytest.raises(GrammarError, match=r"tool 't' .* at /properties/v/items/\$ref"):
        protocol("call").grammar(TurnSpec((spec,)), language)


@pytest.mark.parametrize("language", LANGUAGES)
def test_keywords_are_held_to_their_schemas(language: str) -> None:
    definitions = {"$defs": {"A": {"enum": ["a", 1]}}}
    spec = tool({"$ref": "#/$defs/A"}, required=["v"], minProperties=1, maxProperties=1, **definitions)
    grammar = protocol("call").grammar(TurnSpec((spec,), answer=False), language)
    for given, legal in (('v="a"', True), ("v=1", True), ("v=2", False), ("", False)):
        assert TAKES[language](grammar, f"Thought: I call the tool.\nAction: t({given})") == legal

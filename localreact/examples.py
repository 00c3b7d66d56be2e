"""Worked examples for the prompt, made for the tools at hand."""

from __future__ import annotations

import re
from typing import Any

from localreact.grammar.quotes import QUOTE_MIN
from localreact.grammar.validation import Validator
from localreact.types import JsonSchema, ToolExample, ToolSpec


def examples_for(tools: tuple[ToolSpec, ...], per_tool: int) -> list[tuple[str, ToolExample]]:
    """Up to `per_tool` examples of each tool with its name, the tools taking turns.

    Every other round goes through the tools backwards, so that no tool always follows another: a
    small model copies the last order that it saw (measured: benchmarks/LOG.md).

    A tool without examples gets a plain one, if values that fit its schema can be made up.
    """
    return [
        (tool.name, example)
        for number in range(per_tool)
        for tool in (tools if (per_tool - number) % 2 else tools[::-1])
        for example in (tool.examples or _made_up(tool))[number : number + 1]
    ]


def quote_for(example: ToolExample) -> str:
    """The sentence of an example's result that its answer stands in; the whole result where that is short,
    or no sentence holds it."""
    sentences = _SENTENCE_END.split(example.result)
    found = [each for each in sentences if example.answer in each and len(each) >= QUOTE_MIN]
    return found[0] if found else example.result


_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+|(?<=: )")
_WORDS = ("alpha", "bravo")
_RESULTS = ("42", "17")


def _made_up(tool: ToolSpec) -> tuple[ToolExample, ...]:
    """Two plain examples with different values, so that a model copies the pattern and not the value."""
    made = []
    for number in range(len(_WORDS)):
        try:
            arguments = _sample(tool.parameters, number)
            fits = Validator(tool.parameters).fits(arguments)
        except Exception:  # schemas come from anywhere; one that can't be sampled gets no example
            return ()
        if not fits or not isinstance(arguments, dict):
            return ()
        given = ", ".join(str(value) for value in arguments.values())
        task = tool.description.split(". ")[0].rstrip(".")
        made.append(
            ToolExample(
                question=f"{task}: {given}" if given else task,
                thought=f"I should use {tool.name}.",
                arguments=arguments,
                result=_RESULTS[number],
                conclusion=f"The result is {_RESULTS[number]}.",
                answer=_RESULTS[number],
            )
        )
    return tuple(made)


def _sample(schema: JsonSchema | bool, number: int) -> Any:
    """A value that such a schema probably admits (the caller checks); another for another number."""
    if isinstance(schema, bool):
        return _WORDS[number]
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][number % len(schema[key])]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return _sample(schema[key][0], number)
    match schema.get("type"):
        case "object":
            wanted = schema.get("required", ())
            properties = schema.get("properties", {})
            return {key: _sample(each, number) for key, each in properties.items() if key in wanted}
        case "array":
            length = max(1, min(schema.get("minItems", 0), 3))
            return [_sample(schema.get("items", True), number)] * length
        case "integer" | "number":
            return max(number + 1, schema.get("minimum", 1))
        case "boolean":
            return True
        case "null":
            return None
    return _WORDS[number]

"""Worked examples for the prompt, made for the tools at hand."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry

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


def _made_up(tool: ToolSpec) -> tuple[ToolExample, ...]:
    try:
        arguments = _sample(tool.parameters, "")
        fits = Draft202012Validator(dict(tool.parameters), registry=Registry()).is_valid(arguments)
    except Exception:  # schemas come from anywhere; one that can't be sampled gets no example
        return ()
    if not fits or not isinstance(arguments, dict):
        return ()
    given = ", ".join(f"{name} {value}" for name, value in arguments.items())
    return (
        ToolExample(
            question=f"What does {tool.name} give" + (f" for {given}?" if given else "?"),
            thought=f"I should use {tool.name}.",
            arguments=arguments,
            result=f"the result of {tool.name}",
            conclusion=f"{tool.name} gave a result.",
            answer=f"the result of {tool.name}",
        ),
    )


def _sample(schema: JsonSchema | bool, name: str) -> Any:
    """A value that such a schema probably admits; the caller checks."""
    if isinstance(schema, bool):
        return name
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return _sample(schema[key][0], name)
    match schema.get("type"):
        case "object":
            wanted = schema.get("required", ())
            return {
                key: _sample(each, key) for key, each in schema.get("properties", {}).items() if key in wanted
            }
        case "array":
            return [_sample(schema.get("items", True), name)] * max(1, min(schema.get("minItems", 0), 3))
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
        case "null":
            return None
    return f"some {name}" if name else "something"

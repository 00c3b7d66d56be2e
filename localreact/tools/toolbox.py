"""Executing calls: arguments validated, every failure an observation."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass, replace
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from pydantic import BaseModel
from referencing import Registry

from localreact.errors import ToolDefinitionError
from localreact.tools.decorator import Tool, tool
from localreact.types import Observation, ToolCall, ToolSpec

RESERVED = ("finish",)
_NAME = re.compile(r"[\w.-]{1,64}")
_MOST_ITEMS = 1000  # of a set, a generator, … that are turned into text


class Toolbox:
    """The tools of an agent, by name.

    Raises:
        ToolDefinitionError: two tools of one name, a name that can't be used, a broken schema.
    """

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._validators: dict[str, Draft202012Validator] = {}
        for each in tools:
            self._add(each if isinstance(each, Tool) else tool(each))

    def _add(self, new: Tool) -> None:
        name, schema = new.spec.name, {"type": "object", **new.spec.parameters}
        if not schema.keys() - {"type", "title", "description", "$schema"}:
            schema["properties"] = {}  # a tool without parameters, as people write it
        if name in self._tools:
            raise ToolDefinitionError(f"two tools are named {name!r}", "Rename one: @tool(name=…).")
        if name in RESERVED or not _NAME.fullmatch(name):
            raise ToolDefinitionError(
                f"a tool can't be named {name!r}",
                "Names are 1 to 64 letters, digits, '_', '-' or '.', and 'finish' is taken.",
            )
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise ToolDefinitionError(
                f"tool {name!r}: its schema is broken at {error.json_path}: {error.message}"
            ) from error
        if schema["type"] != "object":
            raise ToolDefinitionError(f"tool {name!r}: its parameters must be an object")
        self._tools[name] = replace(new, spec=replace(new.spec, parameters=schema))
        self._validators[name] = Draft202012Validator(
            schema,
            format_checker=Draft202012Validator.FORMAT_CHECKER,
            registry=Registry(),  # no reference is fetched from anywhere
        )

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(each.spec for each in self._tools.values())

    def execute(self, call: ToolCall) -> Observation:
        """Run a call. Whatever the tool raises becomes an observation; only Ctrl-C passes through."""
        if call.tool not in self._tools:
            names = ", ".join(self._tools) or "none"
            return _refusal(call, f"there is no tool {call.tool!r}; the tools are: {names}")
        try:
            problem = best_match(self._validators[call.tool].iter_errors(dict(call.arguments)))
        except Exception as error:  # a schema with a dead reference, say
            return _refusal(call, f"the schema of {call.tool} can't be applied: {error}")
        if problem is not None:
            where = problem.json_path.removeprefix("$").removeprefix(".") or "the arguments"
            return _refusal(call, f"invalid arguments at {where}: {problem.message[:300]}")
        try:
            return Observation(call.tool, as_text(self._tools[call.tool].invoke(call.arguments)))
        except (Exception, SystemExit) as error:  # a tool is somebody else's code: anything goes
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return Observation(call.tool, text, ok=False)


def _refusal(call: ToolCall, message: str) -> Observation:
    return Observation(call.tool, message, ok=False, executed=False)


def as_text(value: Any) -> str:
    """What a tool returned, as text for a model: strings as they are, the rest as JSON."""
    if value is None:
        return "done (no result)"
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return json.dumps(_plain(value), ensure_ascii=False, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Iterable):
        return [_plain(each) for each in islice(value, _MOST_ITEMS)]
    return str(value)

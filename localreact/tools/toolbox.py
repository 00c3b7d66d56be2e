"""Executing calls: arguments validated, every failure an observation."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from jsonschema.exceptions import SchemaError

from localreact.errors import GrammarError, ToolDefinitionError, UsageError
from localreact.grammar.validation import Validator, check_schema
from localreact.tools import execution
from localreact.tools.decorator import Tool, tool
from localreact.tools.execution import Abandoned, Call, Gone, Waiting
from localreact.tools.results import as_text, materialised
from localreact.types import Observation, ToolCall, ToolSpec

RESERVED = ("finish",)  # in any case: the call protocol ends with Finish(…)
_NAME = re.compile(r"[\w.-]{1,64}")
TIMEOUT = 60.0  # seconds
LEAST_DESCRIPTION = 12  # characters


class Toolbox:
    """The tools of an agent, by name. A call of one that says nothing else is waited for `timeout` seconds.

    Raises:
        ToolDefinitionError: two tools of one name, a name that can't be used, a broken schema.
        UsageError: a timeout that makes no sense.
    """

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = (), *, timeout: float = TIMEOUT) -> None:
        if not timeout > 0:
            raise UsageError(f"the tools' timeout must be a time above 0 seconds, not {timeout}")
        self.timeout = timeout
        self._tools: dict[str, Tool] = {}
        self._validators: dict[str, Validator] = {}
        for each in tools:
            self._add(each if isinstance(each, Tool) else tool(each))

    def _add(self, new: Tool) -> None:
        name, schema = new.spec.name, {"type": "object", **new.spec.parameters}
        if not schema.keys() - {"type", "title", "description", "$schema"}:
            schema["properties"] = {}  # a tool without parameters, as people write it
        if name in self._tools:
            raise ToolDefinitionError(f"two tools are named {name!r}", "Rename one: @tool(name=…).")
        if name.lower() in RESERVED or not _NAME.fullmatch(name):
            raise ToolDefinitionError(
                f"a tool can't be named {name!r}",
                "Names are 1 to 64 letters, digits, '_', '-' or '.', and 'finish' is taken.",
            )
        try:
            check_schema(schema)
        except SchemaError as error:
            raise ToolDefinitionError(
                f"tool {name!r}: its schema is broken at {error.json_path}: {error.message}"
            ) from error
        if schema["type"] != "object":
            raise ToolDefinitionError(f"tool {name!r}: its parameters must be an object")
        self._tools[name] = replace(new, spec=replace(new.spec, parameters=schema))
        self._validators[name] = Validator(schema, formats=True)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(each.spec for each in self._tools.values())

    @property
    def notices(self) -> list[str]:
        """Tools that a model can hardly choose, since next to nothing is said of them."""
        return [
            f"tool {name!r}: its description ({each.spec.description!r}) is too short to choose by; "
            "say in its docstring what it does and when it is of use"
            for name, each in self._tools.items()
            if _says_little(each.spec)
        ]

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def refusal(self, call: ToolCall) -> str:
        """Why a call can't be made as it stands; empty where it can."""
        if call.tool not in self._tools:
            names = ", ".join(self._tools) or "none"
            return f"there is no tool {call.tool!r}; the tools are: {names}"
        try:
            problem = self._validators[call.tool].problem(dict(call.arguments))
        except GrammarError as error:  # a dead reference, say
            return f"the schema of {call.tool} can't be applied: {error.message}"
        if problem is None:
            return ""
        where = problem.json_path.removeprefix("$").removeprefix(".") or "the arguments"
        return f"invalid arguments at {where}: {problem.message[:300]}"

    def execute(
        self,
        call: ToolCall,
        under: Call | None = None,
        deadline: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Observation:
        """Make a call. Whatever the tool raises becomes an observation; only Ctrl-C passes through, and
        whatever else interrupts the waiting.

        No longer than the tool's timeout, the deadline (in `time.monotonic()` seconds) and `cancel`
        allow. `under` is what the tool sees as `current_call()`. A tool may return an observation of its
        own; others become one.
        """
        if problem := self.refusal(call):
            return Observation(call.tool, problem, ok=False, executed=False)
        tool = self._tools[call.tool]
        under = under or Call(call.tool, call.arguments)
        timeout = self.timeout if tool.timeout is None else tool.timeout

        def finish(value: Any) -> Observation:
            if isinstance(value, Observation):
                said = value.content
                return replace(value, tool=call.tool, excerpt=tool.trim.excerpt(said, said))
            value = materialised(value)
            content = as_text(value)
            return Observation(call.tool, content, excerpt=tool.trim.excerpt(value, content))

        try:
            seen = execution.run(
                lambda: tool.invoke(call.arguments), finish, under, Waiting(timeout, deadline, cancel)
            )
        except Abandoned as gone:
            seen = _cut_off(tool, gone.why, timeout)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a tool is somebody else's code: anything goes
            if under.abandoned.is_set():  # not the tool's: nobody waits for it any longer
                raise
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            seen = Observation(call.tool, text, ok=False)
        return replace(seen, inner=under.outer.inner)


def _cut_off(tool: Tool, why: Gone, timeout: float) -> Observation:
    """What is said of a call that nobody waits for any longer."""
    reason = {
        "timeout": f"no result within {timeout:g} seconds",
        "deadline": "no result before the run's time was up",
        "cancelled": "no result before the run was cancelled",
    }[why]
    if tool.effects:
        reason += "; the outcome is unknown: it may have taken effect, so it is not made again"
    return Observation(tool.name, reason, ok=False, unknown=tool.effects)


def _says_little(spec: ToolSpec) -> bool:
    text = spec.description
    size = sum(2 if character > "\u2e7f" else 1 for character in text)  # a Chinese character says more
    return size < LEAST_DESCRIPTION or text == spec.name.replace("_", " ")

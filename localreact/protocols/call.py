"""react-call/1: an action as a function call with keyword arguments, each a JSON value.

    Thought: …
    Action: get_weather(city="…", days=3)

`Finish("…")` answers, `Finish(missing="…")` says what is missing. The parser also reads one positional
argument, as the tool's first parameter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from localreact.errors import ProtocolError
from localreact.grammar.rulebook import pointer_token
from localreact.protocols.base import Field, answered
from localreact.protocols.lines import LineProtocol, check_flat, uncallable
from localreact.protocols.strict_json import load_beginning, load_value, raw_controls
from localreact.types import Finish, ToolCall, ToolSpec, Turn, TurnSpec

_HEAD = re.compile(r"Action:[ \t]*([^(\n]*?)[ \t]*\(")
_KEY = re.compile(r"[ \t]*([^\W\d]\w*)[ \t]*=[ \t]*")
_SPACE = re.compile(r"[ \t]*")


class CallProtocol(LineProtocol):
    name = "call"
    how_to = 'one action, such as tool(name="value"), or Finish("answer")'

    def check(self, spec: TurnSpec) -> None:
        for tool in spec.tools:
            for name, each in tool.parameters.get("properties", {}).items():
                if not re.fullmatch(r"[^\W\d]\w*", name) or not isinstance(each, dict):
                    raise uncallable(tool, "call", f"properties/{pointer_token(name)}", "it is no keyword")
            check_flat(tool, "call")

    def write_call(self, call: ToolCall) -> str:
        given = ", ".join(f"{name}={_dumps(value)}" for name, value in call.arguments.items())
        return f"Action: {call.tool}({given})"

    def write_finish(self, finish: Finish) -> str:
        if finish.missing is not None:
            return f"Action: Finish(missing={_dumps(finish.missing)})"
        return f"Action: Finish({_dumps(finish.answer)})"

    def read_action(self, thought: str, action: str, tools: Sequence[ToolSpec], structured: bool) -> Turn:
        head = _head(action)
        positional, given, end = _arguments(action, head.end())
        if action[end:].strip():
            raise ProtocolError("nothing may follow an action")
        if head[1] != "Finish":
            if positional:
                given = {_first_parameter(head[1], tools): positional[0]}
            return ToolCall(thought, head[1], given, repaired=raw_controls(action))
        if len(positional) == 1:
            given = {"answer": positional[0]}
        match given:
            case {"answer": value} if structured and len(given) == 1:
                return answered(thought, value)
            case {"answer": str(answer)} if len(given) == 1:
                return Finish(thought, answer=answer)
            case {"missing": str(missing)} if len(given) == 1:
                return Finish(thought, missing=missing)
        raise ProtocolError("Finish takes an answer, or missing=…")

    def action_end(self, action: str) -> int:
        return _arguments(action, _head(action).end())[2]

    def read_beginning(self, action: str) -> dict[Field, str]:
        if not (head := re.match(r"Action: ([^(\n]+)\(", action)):
            return {}
        inside = action[head.end() :]
        if head[1] != "Finish":
            return {"tool": head[1], "arguments": inside.removesuffix(")")}
        field: Field = "missing" if inside.startswith("missing=") else "answer"
        start = inside.find('"')
        if start < 0:
            return {}
        text = load_beginning(inside[start:].removesuffix(")"))
        return {field: text} if isinstance(text, str) else {}


def _head(action: str) -> re.Match[str]:
    if not (head := _HEAD.match(action)):
        raise ProtocolError("after the thought comes one action, such as tool(name=value)")
    return head


def _first_parameter(name: str, tools: Sequence[ToolSpec]) -> str:
    for tool in tools:
        if tool.name == name:
            return next(iter(tool.parameters.get("properties", {})), "input")
    return "input"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _arguments(text: str, at: int) -> tuple[list[Any], dict[str, Any], int]:
    """What stands between the parentheses (one positional value, or keywords), and where they end."""
    positional: list[Any] = []
    given: dict[str, Any] = {}
    at = _after_space(text, at)
    while not text.startswith(")", at):
        key = _KEY.match(text, at)
        value, at = load_value(text, key.end() if key else at)
        if key is None:
            positional.append(value)
        elif key[1] in given:
            raise ProtocolError(f"the argument {key[1]!r} stands twice")
        else:
            given[key[1]] = value
        at = _after_space(text, at)
        if text.startswith(",", at):
            at = _after_space(text, at + 1)
        elif not text.startswith(")", at):
            raise ProtocolError("an action's arguments are separated by commas and end with ')'")
    if len(positional) > 1 or (positional and given):
        raise ProtocolError("an action takes keyword arguments, or one positional argument")
    return positional, given, at + 1


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at

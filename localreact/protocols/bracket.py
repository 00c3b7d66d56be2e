"""react-bracket/1: the format of the ReAct paper (Yao et al., 2022, arXiv:2210.03629).

    Thought: …
    Action: search[…]

`finish[…]` answers, `finish[insufficient: …]` says what is missing. For tools with one string
parameter; an argument is one line without `]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from localreact.errors import GrammarError, ProtocolError
from localreact.grammar.rulebook import pointer_token
from localreact.protocols.base import Field
from localreact.protocols.lines import LineProtocol, argument_of, check_flat, one_line, uncallable
from localreact.types import Finish, LineBound, ToolCall, ToolSpec, Turn, TurnSpec

_ACTION = re.compile(r"Action:[ \t]*([^\[\n]*?)[ \t]*\[([^\]\n]+)\]")
_INSUFFICIENT = re.compile(r"insufficient[ ]*[:：][ ]*", re.I)
_COMBINING = {"$ref", "allOf", "anyOf", "oneOf"}
_NO_ACTION = "after the thought comes one action, such as search[…], and no more"


class BracketProtocol(LineProtocol):
    name = "bracket"
    how_to = "one action with its input in brackets, or finish[answer]"

    def signature(self, tool: str, names: str) -> str:
        return f"{tool}[{names}]"

    def check(self, spec: TurnSpec) -> None:
        for tool in spec.tools:
            if (name := _parameter(tool)) is None:
                raise uncallable(tool, "bracket", "properties", "it takes exactly one string")
            check_flat(tool, "bracket")
            combined = sorted(tool.parameters["properties"][name].keys() & _COMBINING)
            if combined:
                pointer = f"properties/{pointer_token(name)}/{combined[0]}"
                raise uncallable(tool, "bracket", pointer, "a string's own keywords are all that is held")
        if spec.answer_schema is not None:
            raise GrammarError(
                "an answer with a schema can't be written in the bracket protocol",
                "Use the json, text or call protocol.",
            )

    def bounds(self, spec: TurnSpec) -> tuple[LineBound, ...]:
        lengths: dict[str, tuple[int, int]] = {}
        for tool in spec.tools:  # some stand there in pieces
            _, least, most = argument_of(tool, spec)
            known = lengths.get(tool.name, (least, most))
            lengths[tool.name] = min(least, known[0]), max(most, known[1])
        calls = [LineBound(f"Action: {name}[", *length, "]") for name, length in lengths.items()]
        endings = [LineBound("Action: finish[", 1, spec.answer_max, "]")] * spec.answer
        missing = [LineBound("Action: finish[insufficient: ", 1, spec.answer_max, "]")] * spec.insufficient
        return (*super().bounds(spec), *calls, *endings, *missing)

    def write_call(self, call: ToolCall) -> str:
        return f"Action: {call.tool}[{_inner(next(iter(call.arguments.values()), ''))}]"

    def write_finish(self, finish: Finish) -> str:
        if finish.missing is not None:
            return f"Action: finish[insufficient: {_inner(finish.missing)}]"
        return f"Action: finish[{_inner(finish.answer)}]"

    def read_action(self, thought: str, action: str, tools: Sequence[ToolSpec], structured: bool) -> Turn:
        if not (found := _ACTION.fullmatch(action.rstrip())):
            raise ProtocolError(_NO_ACTION)
        name, inner = found[1], found[2]
        if name == "finish":
            return self._ending(thought, inner)
        inner = self.without_marker(inner)
        parameter = next((_parameter(tool) for tool in tools if tool.name == name), None)
        return ToolCall(thought, name, {parameter or "input": inner})

    def _ending(self, thought: str, inner: str) -> Finish:
        start = _INSUFFICIENT.match(inner)
        text = self.without_marker(inner[start.end() :] if start else inner)
        if not text.strip():
            raise ProtocolError("finish takes an answer, or insufficient: and what is missing")
        return Finish(thought, missing=text) if start else Finish(thought, answer=text)

    def action_end(self, action: str) -> int:
        if not (found := _ACTION.match(action)):
            raise ProtocolError(_NO_ACTION)
        return found.end()

    def read_beginning(self, action: str) -> dict[Field, str]:
        tool, bracket, rest = action.removeprefix("Action: ").partition("[")
        if not bracket or not action.startswith("Action: "):
            return {}
        inner, _, _ = rest.partition("]")
        if tool != "finish":
            return {"tool": tool, "arguments": inner}
        if start := _INSUFFICIENT.match(inner):
            return {"missing": inner[start.end() :]}
        # An answer, unless it may still turn out to be "insufficient: …".
        undecided = "]" not in rest and re.match(
            r"i(n(s(u(f(f(i(c(i(e(n(t *)?)?)?)?)?)?)?)?)?)?)?$", inner, re.I
        )
        return {} if undecided else {"answer": inner}


def _parameter(tool: ToolSpec) -> str | None:
    """The name of a tool's only parameter, if that is a string."""
    properties = tool.parameters.get("properties", {})
    names = [name for name, schema in properties.items() if isinstance(schema, dict)]
    if len(properties) != 1 or not names or properties[names[0]].get("type") != "string":
        return None
    return str(names[0])


def _inner(text: object) -> str:
    return one_line(str(text or "")).replace("]", ")")

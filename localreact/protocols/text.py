"""react-text/1: the format of LangChain's and many others' ReAct agents.

    Thought: …
    Action: NAME
    Action Input: {json}

or, in place of the action, `Final Answer: …` or `Insufficient: …`: one line, ended by its newline or by
the end of generation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from localreact.errors import ProtocolError
from localreact.protocols.base import Field, answered
from localreact.protocols.lines import LineProtocol, one_line
from localreact.protocols.strict_json import load_object, load_value, raw_controls
from localreact.types import Finish, ToolCall, ToolSpec, Turn

_CALL = re.compile(r"Action:[ \t]*([^\n]*?)[ \t]*\nAction Input:(.*)", re.S)
_ENDING = re.compile(r"(Final Answer|Insufficient):[ \t]*([^\n]+)")


class TextProtocol(LineProtocol):
    name = "text"
    how_to = "one action with its input as JSON, or the final answer"

    def write_call(self, call: ToolCall) -> str:
        return f"Action: {call.tool}\nAction Input: {json.dumps(dict(call.arguments), ensure_ascii=False)}"

    def write_finish(self, finish: Finish) -> str:
        if finish.missing is not None:
            return f"Insufficient: {one_line(finish.missing)}\n"
        return f"Final Answer: {one_line(finish.answer or '')}\n"

    def read_action(self, thought: str, action: str, tools: Sequence[ToolSpec], structured: bool) -> Turn:
        if found := _CALL.fullmatch(action):
            return ToolCall(thought, found[1], load_object(found[2]), repaired=raw_controls(found[2]))
        if (found := _ENDING.fullmatch(action)) and found[1] == "Final Answer" and structured:
            value, end = load_value(found[2], 0)
            if found[2][end:].strip():
                raise ProtocolError("nothing may follow the answer")
            return answered(thought, value)
        if found:
            text = self.without_marker(found[2].strip())
            if found[1] == "Insufficient":
                return Finish(thought, missing=text)
            return Finish(thought, answer=text)
        raise ProtocolError("after the thought comes an action and its input, or a final answer, and no more")

    def read_beginning(self, action: str) -> dict[Field, str]:
        if action.startswith("Final Answer: "):
            return {"answer": action[14:].split("\n")[0]}
        if action.startswith("Insufficient: "):
            return {"missing": action[14:].split("\n")[0]}
        tool, newline, rest = action.removeprefix("Action: ").partition("\n")
        if not newline or not action.startswith("Action: "):
            return {}
        values: dict[Field, str] = {"tool": tool}
        if rest.startswith("Action Input: "):
            values["arguments"] = rest[14:]
        return values

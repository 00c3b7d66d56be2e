"""react-text/1: the format of LangChain's and many others' ReAct agents.

    Thought: …
    Action: NAME
    Action Input: {json}

or, in place of the action, `Final Answer: …` or `Insufficient: …`: one line, ended by its newline or by
the end of generation. Where citations are on, a line of JSON with what it rests on precedes an answer:

    Thought: …
    Evidence: [{"step": 1, "quote": …}, …]
    Final Answer: …
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from localreact.errors import ProtocolError
from localreact.protocols.base import Field, answered, evidence_of, plain_evidence
from localreact.protocols.lines import LineProtocol, one_line
from localreact.protocols.strict_json import load_object, load_value, raw_controls
from localreact.types import Finish, LineBound, ToolCall, ToolSpec, Turn, TurnSpec

_CALL = re.compile(r"Action:[ \t]*([^\n]*?)[ \t]*\nAction Input:(.*)", re.S)
_EVIDENCE = re.compile(r"Evidence:[ \t]*")
_LINE_END = re.compile(r"[ \t]*\n")
_ENDING = re.compile(r"(Final Answer|Insufficient):[ \t]*([^\n]+)\s*")
_NO_ACTION = "after the thought comes an action and its input, or a final answer, and no more"


class TextProtocol(LineProtocol):
    name = "text"
    how_to = "one action with its input as JSON, or the final answer"
    cites = True

    def bounds(self, spec: TurnSpec) -> tuple[LineBound, ...]:
        text = spec.answer and spec.answer_schema is None
        endings = ["Final Answer: "] * text + ["Insufficient: "] * spec.insufficient
        return (*super().bounds(spec), *(LineBound(each, 1, spec.answer_max) for each in endings))

    def write_call(self, call: ToolCall) -> str:
        return f"Action: {call.tool}\nAction Input: {json.dumps(dict(call.arguments), ensure_ascii=False)}"

    def write_finish(self, finish: Finish) -> str:
        if finish.missing is not None:
            return f"Insufficient: {one_line(finish.missing)}\n"
        given = json.dumps(plain_evidence(finish.evidence), ensure_ascii=False)
        evidence = f"Evidence: {given}\n" if finish.evidence else ""
        return f"{evidence}Final Answer: {one_line(finish.answer or '')}\n"

    def read_action(self, thought: str, action: str, tools: Sequence[ToolSpec], structured: bool) -> Turn:
        if found := _CALL.fullmatch(action):
            return ToolCall(thought, found[1], load_object(found[2]), repaired=raw_controls(found[2]))
        if evidence := _EVIDENCE.match(action):
            return self._cited(thought, action, evidence.end(), structured)
        return self._ending(thought, action, structured)

    def action_end(self, action: str) -> int:
        if found := _CALL.fullmatch(action):
            return load_value(action, found.end(2) - len(found[2].lstrip()))[1]
        ending = 0
        if evidence := _EVIDENCE.match(action):
            ending = _answer_after(action, load_value(action, evidence.end())[1])
        if found := _ENDING.match(action, ending):
            return found.end(2)
        raise ProtocolError(_NO_ACTION)

    def read_beginning(self, action: str) -> dict[Field, str]:
        if action.startswith("Evidence: "):
            _, newline, action = action.partition("\n")
            if not newline or not action.startswith("Final Answer: "):
                return {}
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

    def _cited(self, thought: str, action: str, at: int, structured: bool) -> Finish:
        """The answer that an action is whose evidence begins at a place."""
        value, end = load_value(action, at)
        finish = self._ending(thought, action[_answer_after(action, end) :], structured)
        repaired = finish.repaired + raw_controls(action[at:end])
        return replace(finish, evidence=evidence_of(value), repaired=repaired)

    def _ending(self, thought: str, action: str, structured: bool) -> Finish:
        if not (found := _ENDING.fullmatch(action)):
            raise ProtocolError(_NO_ACTION)
        if found[1] == "Final Answer" and structured:
            value, end = load_value(found[2], 0)
            if found[2][end:].strip():
                raise ProtocolError("nothing may follow the answer")
            return answered(thought, value)
        text = self.without_marker(found[2].strip())
        stripped = len(found[2]) - len(text)
        if found[1] == "Insufficient":
            return Finish(thought, missing=text, stripped=stripped)
        return Finish(thought, answer=text, stripped=stripped)


def _answer_after(action: str, end: int) -> int:
    """Where the answer begins after evidence that ends at a place."""
    line_end = _LINE_END.match(action, end)
    if not line_end or not action.startswith("Final Answer:", line_end.end()):
        raise ProtocolError("after the evidence comes a final answer, on a line of its own, and no more")
    return line_end.end()

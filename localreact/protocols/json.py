"""react-json/1: one JSON object a turn.

    {"thought": …, "type": "tool_call", "tool": …, "arguments": {…}}
    {"thought": …, "type": "finish", "answer": …}
    {"thought": …, "type": "finish", "status": "insufficient", "missing": …}

and, where citations are on, an answer with what it rests on:

    {"thought": …, "type": "finish", "evidence": [{"step": 1, "quote": …}, …], "answer": …}

or, spelled `finish="tool"`, the same turns without a type:

    {"thought": …, "tool": …, "arguments": {…}}
    {"thought": …, "tool": "finish", "arguments": {"answer": …}}

The parser reads every spelling, fields in any order, and whitespace between tokens.
`tool_result` and `protocol_error` are the runtime's: no grammar here can say them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from localreact.errors import ProtocolError, UsageError
from localreact.grammar import quotes
from localreact.grammar.languages import Writer, writer
from localreact.grammar.lark import bounded
from localreact.grammar.templates import template
from localreact.grammar.whole import turn_regex
from localreact.protocols.base import (
    TurnReader,
    answer_schema,
    check_citations,
    finish_of,
    plain_evidence,
    turn_rules,
)
from localreact.protocols.json_reader import read_beginning
from localreact.protocols.json_schema import turn_schema
from localreact.protocols.strict_json import load_object, load_value, raw_controls
from localreact.types import Finish, Observation, Segment, ToolCall, ToolSpec, Turn, TurnGrammar, TurnSpec

VERSION = "react-json/1"
THOUGHT_KEYS = ("thought", "decision_summary")


class _Rule(str):
    """The name of a grammar rule, told apart from literal values."""


@dataclass(frozen=True)
class JsonProtocol:
    """The fields are the spelling: which of several ways to write the same turns a model gets."""

    thought: str = "thought"
    first: Literal["thought", "type"] = "thought"
    finish: Literal["type", "tool"] = "type"
    compact: bool = False

    @property
    def version(self) -> str:
        return VERSION

    @property
    def stops(self) -> tuple[str, ...]:
        return ("\n{",)  # a second object; inside strings newlines are escaped

    def __post_init__(self) -> None:
        if self.thought not in THOUGHT_KEYS:
            raise UsageError(f"thought must be spelled as one of {THOUGHT_KEYS}, not {self.thought!r}")
        if self.first not in ("thought", "type") or self.finish not in ("type", "tool"):
            raise UsageError(f"no such spelling of the json protocol: {self.first=}, {self.finish=}")

    # --- what the model is told

    def instructions(self, tools: Sequence[ToolSpec], cite: bool = False) -> list[Segment]:
        if not tools:
            return [
                Segment("Answer the question. Reply with one JSON object: a thought, then the answer.", True)
            ]
        lines = [
            Segment(
                "Answer the question with the help of tools. Reply with one JSON object: "
                "a thought, then one tool call or the final answer"
                f"{', with evidence: quotes from the results' * cite}.\nTools:",
                True,
            )
        ]
        for tool in tools:
            names = ", ".join(tool.parameters.get("properties", {}))
            lines.append(Segment(f"\n- {tool.name}({names}): {tool.description}"))
        return lines

    def write(self, turn: Turn) -> str:
        if isinstance(turn, ToolCall):
            return self._dumps(self._call_fields(turn.thought, turn.tool, turn.arguments))
        ending = _answer(turn) if turn.missing is None else _insufficient(turn.missing)
        return self._dumps(self._finish_fields(turn.thought, ending))

    def observation(self, observation: Observation, step: int | None = None) -> list[Segment]:
        kind: dict[str, Any] = {"type": "tool_result"} | ({} if step is None else {"step": step})
        key = "result" if observation.ok else "error"
        return self._said_by_runtime(kind, key, observation.content, observation.note)

    def error(self, message: str) -> list[Segment]:
        return self._said_by_runtime({"type": "protocol_error"}, "error", message)

    def _said_by_runtime(
        self, kind: Mapping[str, Any], key: str, content: str, note: str = ""
    ) -> list[Segment]:
        head = self._dumps({**kind, key: ""})[:-3]
        tail = self._dumps({key: "", "note": note}).partition('""')[2] if note else "}"
        return [Segment(head, True), Segment(self._dumps(content)), Segment(tail, True)]

    # --- what the model may say

    def check(self, spec: TurnSpec) -> None:
        """JSON has words for all of it."""

    def grammar(self, spec: TurnSpec, language: str) -> TurnGrammar:
        check_citations(spec, "json", language, cites=True)
        if language == "json_schema":
            return turn_schema(self._call_fields, self._finish_fields, spec)
        if language == "regex":
            return turn_regex(partial(self.grammar, language="slots"), spec)
        parts, thought = writer(language, spec, protocol="json", compact=self.compact), _Rule("thought")
        text = template(f"json.{language}").render(
            spec=spec,
            tools=spec.tools,
            turns=turn_rules(spec),
            rule=_Rule,
            call=lambda name, arguments: self._rules(self._call_fields(thought, name, arguments), parts),
            finish=lambda **ending: self._rules(self._finish_fields(thought, ending), parts),
            json=parts.json,
            bounded=partial(bounded, language=language),
            answer=answer_schema(spec, language),
            literal=parts.literal,
            stretch=quotes.stretch,
            comma="," if self.compact else ", ",
            head=lambda step: self._dumps({"step": step, "quote": ""})[:-2],
            **parts.helpers,
        )
        return TurnGrammar(language, text)

    def _rules(self, fields: Mapping[str, Any], writer: Writer) -> str:
        """An object as literals, and the names of rules where values are free."""
        marks: list[str] = []

        def hold(value: Any) -> Any:
            if isinstance(value, _Rule):
                marks.append(value)
                return f"\0{len(marks) - 1}\0"
            return {k: hold(v) for k, v in value.items()} if isinstance(value, dict) else value

        parts = self._dumps({key: hold(value) for key, value in fields.items()}).split('"\\u0000')
        rendered = [writer.literal(parts[0])]
        for part in parts[1:]:
            index, rest = part.split('\\u0000"', 1)
            rendered += [marks[int(index)], writer.literal(rest)]
        return " ".join(rendered)

    # --- reading it

    def parse(self, text: str, tools: Sequence[ToolSpec] = (), structured: bool = False) -> Turn:
        fields = load_object(text)
        thoughts = [fields.pop(key) for key in THOUGHT_KEYS if key in fields]
        if len(thoughts) != 1 or not isinstance(thoughts[0], str):
            raise ProtocolError("the object needs one thought, a string")
        kind = fields.pop("type", None)
        ending = fields
        if kind in (None, "tool_call") and fields.keys() == {"tool", "arguments"}:
            tool, arguments = fields["tool"], fields["arguments"]
            if not isinstance(tool, str) or not isinstance(arguments, dict):
                raise ProtocolError("a tool is named by a string, and its arguments are an object")
            if tool != "finish":
                return ToolCall(thoughts[0], tool, arguments, repaired=raw_controls(text))
            ending = arguments
        elif kind != "finish":
            raise ProtocolError(f"an object of type {kind!r} with {sorted(fields)} is no turn")
        if (finish := finish_of(thoughts[0], ending, structured)) is None:
            raise ProtocolError(
                f"a finish holds an answer, or a status and what is missing; this has {sorted(ending)}"
            )
        return replace(finish, repaired=raw_controls(text))

    def turn_end(self, text: str) -> int:
        return load_value(text, len(text) - len(text.lstrip()))[1]

    def reader(self) -> TurnReader:
        return TurnReader(partial(read_beginning, thought_keys=THOUGHT_KEYS))

    # --- the spelling

    def _call_fields(self, thought: str, tool: str, arguments: Any) -> dict[str, Any]:
        kind = {} if self.finish == "tool" else {"type": "tool_call"}
        return self._ordered(thought, {**kind, "tool": tool, "arguments": arguments})

    def _finish_fields(self, thought: str, ending: Mapping[str, Any]) -> dict[str, Any]:
        if self.finish == "tool":
            return self._ordered(thought, {"tool": "finish", "arguments": dict(ending)})
        return self._ordered(thought, {"type": "finish", **ending})

    def _ordered(self, thought: str, rest: dict[str, Any]) -> dict[str, Any]:
        if self.first == "type" and "type" in rest:
            return {"type": rest.pop("type"), self.thought: thought, **rest}
        return {self.thought: thought, **rest}

    def _dumps(self, value: Any) -> str:
        separators = (",", ":") if self.compact else (", ", ": ")
        return json.dumps(value, ensure_ascii=False, separators=separators)


def _answer(finish: Finish) -> dict[str, Any]:
    evidence = {"evidence": plain_evidence(finish.evidence)} if finish.evidence else {}
    return {**evidence, "answer": finish.answer}


def _insufficient(missing: str) -> dict[str, str]:
    return {"status": "insufficient", "missing": missing}

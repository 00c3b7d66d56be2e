"""What the text protocols share: a line of thought, then an action.

A thought, a final answer and a bracket argument are one line without a marker (`grammar.markers`): text
that looks like the beginning of another part of the transcript. Where an action holds JSON strings,
such text is data.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from localreact.errors import GrammarError, ProtocolError, UsageError
from localreact.grammar import quotes
from localreact.grammar.languages import AnyWriter, writer
from localreact.grammar.lark import bounded, parameters
from localreact.grammar.markers import DEFAULT_MARKERS, OWN_MARKERS, marker_pattern
from localreact.grammar.rulebook import pointer_token
from localreact.grammar.schema import subschemas
from localreact.grammar.templates import template
from localreact.grammar.whole import turn_regex
from localreact.protocols.base import Field, TurnReader, answer_schema, check_citations, turn_rules
from localreact.types import (
    Finish,
    LineBound,
    Observation,
    Segment,
    ToolCall,
    ToolSpec,
    Turn,
    TurnGrammar,
    TurnSpec,
)

_THOUGHT = re.compile(r"\s*Thought:[ \t]*([^\n]*)\n(.*)", re.S)


@dataclass(frozen=True)
class LineProtocol(ABC):
    """A subclass knows how an action is written and read. `markers` are words that no thought, answer or
    bracket argument may hold before a colon, in any case; the format's own words always are among them."""

    markers: Sequence[str] = DEFAULT_MARKERS
    _marker: re.Pattern[str] = field(init=False, repr=False, compare=False)

    name: ClassVar[str]
    how_to: ClassVar[str]
    """Tells the model what comes after the thought."""

    cites: ClassVar[bool] = False
    """Whether an answer can carry evidence."""

    def __post_init__(self) -> None:
        if isinstance(self.markers, str) or not all(isinstance(m, str) and m.strip() for m in self.markers):
            raise UsageError(f"markers is a list of words, not {self.markers!r}")
        object.__setattr__(self, "markers", tuple(dict.fromkeys((*OWN_MARKERS, *self.markers))))
        object.__setattr__(self, "_marker", marker_pattern(self.markers))

    @property
    def version(self) -> str:
        return f"react-{self.name}/1"

    @property
    def stops(self) -> tuple[str, ...]:
        return ("\nObservation", "\nThought:")

    def instructions(self, tools: Sequence[ToolSpec], cite: bool = False) -> list[Segment]:
        if not tools:
            return [Segment("Answer the question. Reply with a thought, then the answer.", True)]
        head = f"Answer the question with the help of tools. Reply with a thought, then {self.how_to}."
        if cite:
            head = f"{head[:-1]}, with evidence: quotes from the results."
        lines = [Segment(f"{head}\nTools:", True)]
        for tool in tools:
            names = ", ".join(tool.parameters.get("properties", {}))
            lines.append(Segment(f"\n- {self.signature(tool.name, names)}: {tool.description}"))
        return lines

    def write(self, turn: Turn) -> str:
        action = self.write_call(turn) if isinstance(turn, ToolCall) else self.write_finish(turn)
        return f"Thought: {one_line(turn.thought)}\n{action}"

    def observation(self, observation: Observation, step: int | None = None) -> list[Segment]:
        text = observation.content if observation.ok else f"error: {observation.content}"
        # Continued lines are set in: no line of a tool's text begins like a part of the transcript.
        head = "Observation: " if step is None else f"Observation: [step {step}] "
        said = [Segment(head, True), Segment("\n  ".join(text.splitlines()))]
        return [*said, Segment(f"\nNote: {one_line(observation.note)}", True)] if observation.note else said

    def error(self, message: str) -> list[Segment]:
        return [Segment("Protocol error: ", True), Segment(one_line(message))]

    def grammar(self, spec: TurnSpec, language: str) -> TurnGrammar:
        check_citations(spec, self.name, language, self.cites)
        self.check(spec)
        if language == "regex":
            return turn_regex(partial(self.grammar, language="slots"), spec)
        parts = writer(language, spec, protocol=self.name, markers=self.markers)
        text = template(f"{self.name}.{language}").render(
            spec=spec,
            tools=spec.tools,
            turns=turn_rules(spec),
            literal=parts.literal,
            json=parts.json,
            bounded=partial(bounded, language=language),
            answer=answer_schema(spec, language),
            stretch=quotes.stretch,
            comma=", ",
            head='{{"step": {}, "quote": "'.format,
            keywords=lambda rule, tool: parts.keywords(rule, parameters(tool, spec, language)),
            argument=lambda tool: _argument(parts, tool, spec),
            **parts.helpers,
        )
        # The other languages count the characters of these lines themselves.
        return TurnGrammar(language, text, self.bounds(spec) if language == "gbnf" else ())

    def parse(self, text: str, tools: Sequence[ToolSpec] = (), structured: bool = False) -> Turn:
        found = _split(text)
        thought = self.without_marker(found[1].strip())
        return self.read_action(thought, found[2], tools, structured)

    def turn_end(self, text: str) -> int:
        found = _split(text)
        return found.start(2) + self.action_end(found[2])

    def reader(self) -> TurnReader:
        return TurnReader(self._beginning)

    def _beginning(self, text: str) -> dict[Field, str]:
        if not text.startswith("Thought: "):
            return {}
        thought, newline, action = text.removeprefix("Thought: ").partition("\n")
        return {"thought": thought, **(self.read_beginning(action) if newline else {})}

    def check(self, spec: TurnSpec) -> None:  # noqa: B027  (some call any tool)
        """
        Raises:
            GrammarError: a tool that this protocol can't call, or an answer that it can't give.
        """

    def bounds(self, spec: TurnSpec) -> tuple[LineBound, ...]:
        """The bounds of the lines that hold no JSON."""
        return (LineBound("Thought: ", spec.thought_min, spec.thought_max),)

    def signature(self, tool: str, names: str) -> str:
        return f"{tool}({names})"

    def without_marker(self, line: str) -> str:
        """The line itself.

        Raises:
            ProtocolError: it holds a marker.
        """
        if found := self._marker.search(line):
            raise ProtocolError(f"a line holds the marker {found[0]!r}")
        return line

    @abstractmethod
    def write_call(self, call: ToolCall) -> str: ...

    @abstractmethod
    def write_finish(self, finish: Finish) -> str: ...

    @abstractmethod
    def read_action(self, thought: str, action: str, tools: Sequence[ToolSpec], structured: bool) -> Turn:
        """
        Raises:
            ProtocolError: it isn't exactly one action.
        """

    @abstractmethod
    def action_end(self, action: str) -> int:
        """Where the action ends that a text begins with.

        Raises:
            ProtocolError: the text doesn't begin like an action.
        """

    @abstractmethod
    def read_beginning(self, action: str) -> dict[Field, str]:
        """The fields of an action of which only a beginning is there, as far as they are certain."""


def _split(text: str) -> re.Match[str]:
    """The thought, and what comes after its line."""
    if not (found := _THOUGHT.fullmatch(text)):
        raise ProtocolError("a turn begins with a line 'Thought: …'")
    return found


def one_line(text: str) -> str:
    return " ".join(text.splitlines())


def argument_of(tool: ToolSpec, spec: TurnSpec) -> tuple[Mapping[str, Any], int, int]:
    """The schema of a tool's argument, and how many characters it has: at least, and at most."""
    schema: Mapping[str, Any] = next(iter(tool.parameters["properties"].values()))
    least = max(1, schema.get("minLength", 1))
    return schema, least, schema.get("maxLength", max(least, spec.argument_max))


def _argument(parts: AnyWriter, tool: ToolSpec, spec: TurnSpec) -> str:
    """
    Raises:
        GrammarError: it can't be written; the message names the tool and a JSON pointer.
    """
    try:
        return parts.argument(*argument_of(tool, spec))
    except GrammarError as error:
        (name,) = tool.parameters["properties"]
        raise uncallable(tool, "bracket", f"properties/{pointer_token(name)}", error.message) from error


_SHAPES = ("$ref", "allOf", "anyOf", "oneOf", "enum", "const", "patternProperties")


def check_flat(tool: ToolSpec, protocol: str) -> None:
    """
    Raises:
        GrammarError: not all that is said of a tool's arguments stands in the schemas of its properties, one
            by one, which is all that some protocols look at.
    """
    schema = tool.parameters
    names, required = schema.get("properties", {}), schema.get("required", ())
    for key in _SHAPES:
        if key in schema:
            raise uncallable(tool, protocol, key, "its arguments aren't told apart by their names")
    if missing := [name for name in required if name not in names]:
        raise uncallable(tool, protocol, "required", f"{missing[0]!r} is no property of its schema")
    if schema.get("minProperties", 0) > len(required):
        raise uncallable(tool, protocol, "minProperties", "arguments aren't counted")
    if schema.get("maxProperties", len(names)) < len(names):
        raise uncallable(tool, protocol, "maxProperties", "arguments aren't counted")
    for pointer, each in subschemas(schema):
        reference = str(each.get("$ref", "#/$defs/"))
        if not reference.startswith(("#/$defs/", "#/definitions/")):
            why = f"the reference {reference!r} doesn't lead to a definition"
            raise uncallable(tool, protocol, f"{pointer}/$ref".lstrip("/"), why)


def uncallable(tool: ToolSpec, protocol: str, pointer: str, why: str) -> GrammarError:
    others = "json or text" if protocol == "call" else "json, text or call"
    return GrammarError(
        f"tool {tool.name!r} can't be called in the {protocol} protocol at /{pointer}: {why}",
        f"Use the {others} protocol, or leave the tool out.",
    )

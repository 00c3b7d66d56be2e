"""What a protocol can do. Protocols know text and policy; nothing of models, loops or tools' code."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from localreact.errors import GrammarError, ProtocolError
from localreact.grammar import lark
from localreact.types import (
    Evidence,
    Finish,
    Observation,
    Segment,
    ToolCall,
    ToolSpec,
    Turn,
    TurnGrammar,
    TurnSpec,
)

Field = Literal["thought", "tool", "arguments", "answer", "missing"]


class TurnReader:
    """Reads a turn while it is being written, so that an answer can be shown as it is decoded.

    `values` gives the fields of a turn of which only a beginning is there, as far as they are certain:
    what it says of a longer beginning only ever goes on from what it said of a shorter one.
    """

    def __init__(self, values: Callable[[str], Mapping[Field, str]]) -> None:
        self._values = values
        self._text = ""
        self._shown: dict[Field, int] = {}

    def feed(self, text: str) -> list[tuple[Field, str]]:
        """The next stretch of the turn's text, as what it adds to each field; strings come decoded."""
        self._text += text
        pieces = []
        for field, value in self._values(self._text).items():
            start = self._shown.get(field, 0)
            if len(value) > start:
                pieces.append((field, value[start:]))
                self._shown[field] = len(value)
        return pieces


class Protocol(typing.Protocol):
    @property
    def version(self) -> str:
        """Name and version, as it stands in traces (`react-json/1`)."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that no turn holds and with which something else begins, for where no grammar is."""

    def instructions(self, tools: Sequence[ToolSpec], cite: bool = False) -> list[Segment]:
        """The system text: what to do, and the tools with their arguments; `cite` asks for evidence."""

    def check(self, spec: TurnSpec) -> None:
        """
        Raises:
            GrammarError: a tool or an answer that this protocol has no words for, in whatever language.
        """

    def grammar(self, spec: TurnSpec, language: str) -> TurnGrammar:
        """
        Raises:
            GrammarError: this protocol can't be written in that language.
        """

    def write(self, turn: Turn) -> str:
        """The text of a turn, as the model is shown it in examples."""

    def parse(self, text: str, tools: Sequence[ToolSpec] = (), structured: bool = False) -> Turn:
        """The turn that a text is. `tools` name the parameters that some formats leave out; a
        `structured` answer is any JSON value, otherwise it is text.

        Raises:
            ProtocolError: the text isn't exactly one turn.
        """

    def turn_end(self, text: str) -> int:
        """Where the turn ends that a text begins with. What stands before needn't be a turn: `parse` says.

        Raises:
            ProtocolError: the text doesn't begin like a turn.
        """

    def reader(self) -> TurnReader: ...

    def observation(self, observation: Observation, step: int | None = None) -> list[Segment]:
        """What the runtime says after a tool call; with the step by which it can be cited, if it can."""

    def error(self, message: str) -> list[Segment]:
        """What the runtime says after a text that was no turn."""


def first_grammar(protocol: Protocol, spec: TurnSpec, languages: Sequence[str]) -> TurnGrammar | None:
    """The turn in the first of the languages that the protocol can be written in; None only where there is
    no language.

    Raises:
        GrammarError: the turn can't be written in any of them, or the protocol has no words for it.
    """
    failure: GrammarError | None = None
    for language in languages:
        try:
            return protocol.grammar(spec, language)
        except GrammarError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    protocol.check(spec)
    return None


def turn_rules(spec: TurnSpec) -> list[str]:
    """The names of the rules that a turn may be one of, in every template.

    Raises:
        GrammarError: nothing at all is legal.
    """
    rules = [f"call_{number}" for number in range(len(spec.tools))]
    rules += ["finish"] * spec.answer + ["insufficient"] * spec.insufficient
    if not rules:
        raise GrammarError("a turn with no legal tool and no legal ending can't be written")
    return rules


def check_citations(spec: TurnSpec, protocol: str, language: str, cites: bool) -> None:
    """
    Raises:
        GrammarError: the spec asks for citations, and they can't be enforced so.
    """
    if spec.sources and not cites:
        raise GrammarError(
            f"the {protocol} protocol has no place for citations", "Use the json or text protocol."
        )
    if spec.sources and language != "lark":
        raise GrammarError(f"citations can't be written in {language!r}", "Use the llguidance engine.")


def read_first(
    protocol: Protocol, text: str, tools: Sequence[ToolSpec] = (), structured: bool = False
) -> tuple[Turn, str]:
    """The turn that a text begins with, and that turn's own text; `extra` counts the characters after it.

    For where no grammar ends a turn and models go on: with an observation of their own, or an answer.

    Raises:
        ProtocolError: the text doesn't begin with a turn.
    """
    end = protocol.turn_end(text)
    own = text[:end]
    return replace(protocol.parse(own, tools, structured), extra=len(text[end:].strip())), own


def mark_truncated(turn: Turn, spec: TurnSpec) -> Turn:
    """The turn with the names of those strings that are as long as their bound.

    A thought that reached its bound cuts nothing that is acted on, and doesn't count.
    """
    if isinstance(turn, ToolCall):
        reached = tuple(path for path, text in _strings(turn.arguments, "") if len(text) == spec.argument_max)
    else:
        fields = {"answer": turn.answer if turn.value is None else turn.value, "missing": turn.missing}
        most = spec.answer_max - turn.stripped
        reached = tuple(path[1:] for path, text in _strings(fields, "") if len(text) == most)
    return replace(turn, truncated=reached)


def _strings(value: Any, path: str) -> Iterable[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _strings(each, f"{path}/{key}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _strings(each, f"{path}/{index}")


def answer_schema(spec: TurnSpec, language: str) -> dict[str, Any]:
    """What the answer is as JSON, strings bounded."""
    if spec.answer_schema is None:
        return {"type": "string", "minLength": 1, "maxLength": spec.answer_max}
    return lark.bounded(spec.answer_schema, spec.answer_max, language)


def answered(thought: str, value: Any) -> Finish:
    """A finish with an answer of some JSON type."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return Finish(thought, answer=text, value=value)


def finish_of(thought: str, fields: Mapping[str, Any], structured: bool) -> Finish | None:
    """A Finish from `answer` (and `evidence`, if any), or from `status` and `missing`; None where they are
    neither.

    Raises:
        ProtocolError: the evidence is none.
    """
    match dict(fields):
        case {"answer": _, "evidence": evidence, **rest} if not rest:
            finish = finish_of(thought, {"answer": fields["answer"]}, structured)
            return finish and replace(finish, evidence=evidence_of(evidence))
        case {"answer": value, **rest} if structured and not rest:
            return answered(thought, value)
        case {"answer": str(answer), **rest} if not rest:
            return Finish(thought, answer=answer)
        case {"status": "insufficient", "missing": str(missing), **rest} if not rest:
            return Finish(thought, missing=missing)
    return None


def evidence_of(value: Any) -> tuple[Evidence, ...]:
    """
    Raises:
        ProtocolError: it isn't a list of steps and quotes.
    """
    found = []
    for each in value if isinstance(value, list) else [None]:
        match each:
            case {"step": int(step), "quote": str(quote), **rest} if not rest and not isinstance(step, bool):
                found.append(Evidence(step, quote))
            case _:
                raise ProtocolError('evidence is a list of objects, each {"step": number, "quote": text}')
    return tuple(found)


def plain_evidence(evidence: Iterable[Evidence]) -> list[dict[str, Any]]:
    """Evidence as JSON holds it."""
    return [{"step": each.step, "quote": each.quote} for each in evidence]

"""What a grammar doesn't hold of a reply, checked once the reply is whole: by the client's own schemas."""

from __future__ import annotations

import json
from typing import Any

from localreact.errors import ProtocolError
from localreact.grammar import quotes
from localreact.grammar.validation import Validator
from localreact.serve.ask import Ask
from localreact.types import JsonSchema, ToolCall, Turn, TurnSpec


def check_turn(turn: Turn, ask: Ask, spec: TurnSpec) -> None:
    """
    Raises:
        ProtocolError: it isn't a turn that was asked for.
    """
    if isinstance(turn, ToolCall):
        legal = [tool.name for tool in spec.tools]
        if turn.tool not in legal:
            raise ProtocolError(
                f"the model called {turn.tool!r}; it may call: {', '.join(legal) or 'nothing'}"
            )
        asked = next(tool.parameters for tool in ask.tools if tool.name == turn.tool)
        _check(asked, dict(turn.arguments), f"the model called {turn.tool!r} with arguments that don't fit")
        return
    if not spec.answer:
        raise ProtocolError("the model answered where a call was required")
    if ask.answer is not None:
        if turn.missing is not None:
            raise ProtocolError("the model said what is missing, and gave no answer")
        _check(ask.answer, turn.value, "the model's answer doesn't fit")
    if problem := quotes.objection(turn.evidence, spec):
        raise ProtocolError(f"the model's evidence is none: {problem}")


def check_text(text: str, schema: JsonSchema) -> None:
    """
    Raises:
        ProtocolError: it isn't JSON that fits the schema.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the model's reply isn't JSON: {error}") from error
    _check(schema, value, "the model's reply doesn't fit")


def _check(schema: JsonSchema, value: Any, what: str) -> None:
    if (problem := Validator(schema, formats=True).problem(value)) is not None:
        raise ProtocolError(f"{what} at {problem.json_path}: {problem.message[:300]}")

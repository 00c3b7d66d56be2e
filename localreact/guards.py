"""Sees that a run goes in circles: pure functions of its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localreact.run import RunState
from localreact.types import ToolCall

MAX_REPEATS = 2
"""So many times the same call with the same result, and it leaves the language."""


def dead_calls(state: RunState) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Calls, as tool and arguments, that were repeated and last brought nothing new.

    A call whose result changed since (a poll) isn't among them.
    """
    made: list[tuple[ToolCall, str, int]] = []  # with the last result, and how often it came in a row
    for step in state.steps:
        if not isinstance(step.turn, ToolCall) or step.observation is None or not step.observation.executed:
            continue
        result = step.observation.content
        for index, (call, last, times) in enumerate(made):
            if call.tool == step.turn.tool and call.arguments == step.turn.arguments:
                made[index] = (call, result, times + 1 if result == last else 1)
                break
        else:
            made.append((step.turn, result, 1))
    return tuple((call.tool, call.arguments) for call, _, times in made if times >= MAX_REPEATS)


def unknown_calls(state: RunState) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Calls that may have taken effect: making them again might do it twice."""
    return tuple(
        (step.turn.tool, step.turn.arguments)
        for step in state.steps
        if isinstance(step.turn, ToolCall) and step.observation is not None and step.observation.unknown
    )

"""Reads the beginning of a JSON turn."""

from __future__ import annotations

import re
from collections.abc import Collection

from pydantic_core import from_json

from localreact.protocols.base import Field
from localreact.protocols.strict_json import load_beginning

# A quote inside a string is escaped, so the first match is the turn's own key.
_ARGUMENTS = re.compile(r'"arguments":\s*')


def read_beginning(text: str, thought_keys: Collection[str]) -> dict[Field, str]:
    """The fields of a turn of which only a beginning is there; of anything else, none.

    Strings come decoded, and never half an escape; `arguments` come as the JSON that they are.
    """
    turn = load_beginning(text)
    if not isinstance(turn, dict):
        return {}
    values: dict[Field, object] = {}
    for key in thought_keys:
        if key in turn:
            values["thought"] = turn[key]
    ending = turn
    if turn.get("tool") == "finish":
        arguments = turn.get("arguments")
        ending = arguments if isinstance(arguments, dict) else {}
    elif found := "arguments" in turn and _ARGUMENTS.search(text):
        raw = text[found.end() :]
        # Once the object is whole, its last character is the turn's own closing brace.
        values |= {"tool": turn.get("tool"), "arguments": raw[:-1] if _complete(text) else raw}
    values |= {"answer": ending.get("answer"), "missing": ending.get("missing")}
    return {field: value for field, value in values.items() if isinstance(value, str)}


def _complete(text: str) -> bool:
    try:
        from_json(text)
    except ValueError:
        return False
    return True

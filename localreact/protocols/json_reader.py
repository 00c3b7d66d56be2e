"""Reads a JSON turn while it is being written, so that an answer can be shown as it is decoded."""

from __future__ import annotations

import re
from collections.abc import Collection

from pydantic_core import from_json

from localreact.protocols.base import Field
from localreact.protocols.strict_json import load_beginning

# A quote inside a string is escaped, so the first match is the turn's own key.
_ARGUMENTS = re.compile(r'"arguments":\s*')


class JsonReader:
    """For text that is the beginning of a turn; anything else shows nothing.

    Strings come decoded, and never half an escape; `arguments` come as the JSON that they are.
    """

    def __init__(self, thought_keys: Collection[str]) -> None:
        self._thought_keys = thought_keys
        self._text = ""
        self._shown: dict[Field, int] = {}

    def feed(self, text: str) -> list[tuple[Field, str]]:
        self._text += text
        pieces = []
        for field, value in self._values().items():
            start = self._shown.get(field, 0)
            if len(value) > start:
                pieces.append((field, value[start:]))
                self._shown[field] = len(value)
        return pieces

    def _values(self) -> dict[Field, str]:
        turn = load_beginning(self._text)
        if not isinstance(turn, dict):
            return {}
        values: dict[Field, object] = {}
        for key in self._thought_keys:
            if key in turn:
                values["thought"] = turn[key]
        ending = turn
        if turn.get("tool") == "finish":
            arguments = turn.get("arguments")
            ending = arguments if isinstance(arguments, dict) else {}
        elif found := "arguments" in turn and _ARGUMENTS.search(self._text):
            raw = self._text[found.end() :]
            # Once the object is whole, its last character is the turn's own closing brace.
            values |= {"tool": turn.get("tool"), "arguments": raw[:-1] if _complete(self._text) else raw}
        values |= {"answer": ending.get("answer"), "missing": ending.get("missing")}
        return {field: value for field, value in values.items() if isinstance(value, str)}


def _complete(text: str) -> bool:
    try:
        from_json(text)
    except ValueError:
        return False
    return True

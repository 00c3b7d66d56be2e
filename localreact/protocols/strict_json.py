"""JSON as a turn may hold it: no duplicate keys, no NaN or Infinity, nothing after the value.

Raw control characters inside strings are let through, since models without a grammar write them, and
there is no doubt about what they mean; `raw_controls` counts them.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from pydantic_core import from_json

from localreact.errors import ProtocolError


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ProtocolError("a key stands twice in one object")
    return result


def _no_constant(name: str) -> NoReturn:
    raise ProtocolError(f"{name} is no JSON value")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ProtocolError(f"the number {digits} is out of range")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite, strict=False
)

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.S)
MAX_DEPTH = 64


def _flat(value: Any, depth: int = 0) -> Any:
    """The value itself.

    Raises:
        ProtocolError: it is nested deeper than what reads it later can follow.
    """
    if isinstance(value, dict | list):
        if depth == MAX_DEPTH:
            raise ProtocolError(f"values are nested deeper than {MAX_DEPTH} levels")
        for each in value.values() if isinstance(value, dict) else value:
            _flat(each, depth + 1)
    return value


def load_object(text: str) -> dict[str, Any]:
    """The object that a text is.

    Raises:
        ProtocolError: it isn't exactly one JSON object.
    """
    try:
        value = _flat(_DECODER.decode(text))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not one JSON object: {error}") from error
    if not isinstance(value, dict):
        raise ProtocolError("not a JSON object")
    return value


def load_value(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at a place, and where it ends.

    Raises:
        ProtocolError: no JSON value begins there.
    """
    try:
        value, end = _DECODER.raw_decode(text, at)
        return _flat(value), end
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a JSON value: {error}") from error


def load_beginning(text: str) -> Any:
    """The value of which a text is the beginning, as far as it goes; None if it is none.

    Strings may be cut anywhere; half an escape is left out.
    """
    try:
        return from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return None


def raw_controls(text: str) -> int:
    """Control characters that stand unescaped inside the strings of a JSON text."""
    return sum(character < " " for string in _STRING.findall(text) for character in string)

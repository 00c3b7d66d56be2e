"""What a model wrote in one completion, before anything was read or cut: actions, and forged observations.

Looks at the text alone and is lenient, since free arms write all kinds; but in a turn that a grammar admits
it finds that turn and nothing else. What stands in JSON strings is data and never counts, nor does an object
inside a thought or an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from localreact.grammar.markers import marker_pattern

_OBSERVED = r"observations?|tool[ _]results?|观察|观测"
_ACTED = r"action|final answer|insufficient|行动|动作|最终答案"
_BEGINS = r"(?:(?P<line>^|(?<=\n))|(?<=[}\])>*#]))[ \t*#>-]*"
_MARK = re.compile(
    rf"{_BEGINS}(?i:(?P<observed>{_OBSERVED})[ \t*]*(?:[:：]|$)|(?P<acted>{_ACTED})[ \t*]*[:：]"
    r"|(?P<thought>thought|思考)[ \t*]*[:：]|(?P<finish>(?-i:Finish)\())"
)
_MARKER = marker_pattern()
_LABELLED = re.compile(rf"[ \t*#>-]*(?i:{_OBSERVED}|{_ACTED}|thought|思考|action input)[ \t*]*[:：]")
_AFTER_INPUT = re.compile(r"[ \t*#>-]*(?i:action input)[ \t*]*[:：].*\}[ \t]*$")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|"[^"\n]*$')
_RESULT_TYPES = ("tool_result", "observation", "tool_response", "function_result")
_UNREADABLE_RESULT = re.compile(rf'(?<!\\)"type"\s*:\s*"(?:{"|".join(_RESULT_TYPES)})"')
_INPUT = re.compile(r"action input[ \t*]*[:：]\s*$|\(\s*$|=\s*$", re.I)


@dataclass(frozen=True)
class Raw:
    """`forged` are the texts of observations that the model wrote itself; `went_on` says that it then
    wrote something that builds on the first of them."""

    actions: int
    forged: tuple[str, ...]
    went_on: bool


@dataclass(frozen=True)
class _Piece:
    start: int
    end: int
    kind: str


def read_raw(text: str) -> Raw:
    """Parts of a transcript in a completion, in any protocol."""
    pieces = _pieces(text)
    observed = [piece for piece in pieces if piece.kind == "observed"]
    forged = tuple(_content(text, piece, pieces) for piece in observed)
    went_on = bool(observed) and any(
        piece.start > observed[0].start for piece in pieces if piece.kind != "observed"
    )
    return Raw(sum(piece.kind == "acted" for piece in pieces), forged, went_on)


def _pieces(text: str) -> list[_Piece]:
    pieces = []
    masked = text
    for start, end, value in _objects(text):
        data = _INPUT.search(text[:start]) or _is_data(masked, start)
        if kind := "" if data else _kind(value):
            pieces.append(_Piece(start, end, kind))
        masked = masked[:start] + "}" * (end - start) + masked[end:]
    for found in _UNREADABLE_RESULT.finditer(masked):
        if _is_data(masked, found.start()):
            continue
        pieces.append(_Piece(found.start(), len(text), "observed"))
    masked = _STRING.sub(lambda found: "}" * len(found[0]), masked)
    for found in _MARK.finditer(masked):
        kind = found.lastgroup or ""
        if found["line"] is None and not _MARKER.fullmatch(found[0].lstrip(" \t*#>-")):
            continue  # in the middle of a line only what no thought and no answer may hold
        pieces.append(_Piece(found.start(), found.end(), "acted" if kind == "finish" else kind))
    return sorted(pieces, key=lambda piece: piece.start)


def _is_data(text: str, at: int) -> bool:
    """Whether what stands there belongs to a thought, an answer, or the line of an action."""
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return _LABELLED.match(before) is not None and not _AFTER_INPUT.match(before)


def _objects(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """The outermost JSON objects, control characters in strings admitted."""
    decoder = json.JSONDecoder(strict=False)
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end, value = at + 1, None
        if isinstance(value, dict):
            yield at, end, value
        at = text.find("{", end)


def _kind(value: dict[str, Any]) -> str:
    if value.get("type") in _RESULT_TYPES:
        return "observed"
    if {"tool", "arguments", "answer", "missing", "thought"} & value.keys():
        return "acted"
    return "observed" if {"result", "observation"} & value.keys() else ""


def _content(text: str, piece: _Piece, pieces: list[_Piece]) -> str:
    """A forged observation's text: up to the next part of the transcript."""
    if text[piece.start] == "{":
        return text[piece.start : piece.end]
    following = [each.start for each in pieces if each.start >= piece.end]
    return text[piece.end : min(following, default=len(text))].strip()

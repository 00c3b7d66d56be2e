"""Markers: words that, before a colon, look like the beginning of another part of a transcript."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from localreact.grammar.lark import escaped

OWN_MARKERS = (
    "thought",
    "action",
    "action input",
    "observation",
    "final answer",
    "insufficient",
    "evidence",
    "protocol error",
)
"""What our own text protocols write before a colon: no list of markers goes without these."""

DEFAULT_MARKERS = (*OWN_MARKERS, "思考", "行动", "动作", "行动输入", "动作输入", "观察", "最终答案", "证据")


def marker_words(markers: Iterable[str] = DEFAULT_MARKERS) -> str:
    """A regex for the words of the markers, in any case. Python's `re` and llguidance read it alike, also
    inside `/…/`."""
    return "|".join(
        "[ \\t]+".join("".join(map(_letter, word)) for word in marker.split()) for marker in markers
    )


def marker_pattern(markers: Iterable[str] = DEFAULT_MARKERS) -> re.Pattern[str]:
    """Found in any text that holds a marker: spaces may stand before a half- or full-width colon."""
    return re.compile(f"(?:{marker_words(markers)})[ \\t]*[:：]")


@functools.cache
def any_case(letter: str) -> str:
    """The letter in any case, as Python's `re` has it: it knows more than two for some, and llguidance not
    all of those (i, ı and İ)."""
    return "".join(sorted({letter, *re.findall(f"(?i:{re.escape(letter)})", _cased())}))


def _letter(letter: str) -> str:
    cases = any_case(letter)
    return escaped(letter) if len(cases) == 1 else f"[{escaped(cases)}]"


@functools.cache
def _cased() -> str:
    """All characters that have cases, by way of which one may stand for another."""
    characters = map(chr, (*range(0xD800), *range(0xE000, 0x20000)))
    return "".join(c for c in characters if c.lower() != c or c.upper() != c)

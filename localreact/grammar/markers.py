"""Markers: words that, before a colon, look like the beginning of another part of a transcript."""

from __future__ import annotations

import re
from collections.abc import Iterable

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
    """A regex for the words of the markers, for any case. Python's `re` and llguidance both take it."""
    return "|".join(re.escape(word).replace("\\ ", "[ \\t]+") for word in markers)


def marker_pattern(markers: Iterable[str] = DEFAULT_MARKERS) -> re.Pattern[str]:
    """Found in any text that holds a marker: spaces may stand before a half- or full-width colon."""
    return re.compile(f"(?i:{marker_words(markers)})[ \\t]*[:：]")

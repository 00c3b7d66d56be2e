"""Markers: words that, before a colon, look like the beginning of another part of a transcript."""

from __future__ import annotations

import re
from collections.abc import Iterable

DEFAULT_MARKERS = (
    "thought",
    "action",
    "action input",
    "observation",
    "final answer",
    "insufficient",
    "protocol error",
    "思考",
    "行动",
    "动作",
    "行动输入",
    "动作输入",
    "观察",
    "最终答案",
)


def marker_regex(markers: Iterable[str] = DEFAULT_MARKERS) -> str:
    """A regex for any text that holds a marker: any case, spaces before a half- or full-width colon.

    Written so that Python's `re` and llguidance's regexes both take it.
    """
    words = "|".join(re.escape(word).replace("\\ ", "[ \\t]+") for word in markers)
    return f"(?s:.*)(?i:{words})[ \\t]*[:：](?s:.*)"


MARKER = re.compile(marker_regex())

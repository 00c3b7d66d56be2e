"""Sets of characters, and how a JSON string spells them.

A string's characters are spelled one way each, the way llguidance takes: only quote, backslash and
control characters are escaped, so that an escape is no disguise for a plain letter.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import TypeAlias

from localreact.grammar.nodes import NOTHING, alt, seq
from localreact.grammar.rules import Chars, Node, Text

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Code points, each range from its first to its last; sorted, apart from each other."""

EVERY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
"""All characters: code points that aren't surrogates, which no UTF-8 holds."""

RAW: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E), (0x80, 0xD7FF), (0xE000, 0x10FFFF))
"""What stands in a JSON string as itself."""

_SHORT = {ord(json.loads(f'"\\{letter}"')): letter for letter in 'bfnrt"\\'}
_CODED: Ranges = ((0, 0x1F), (0x7F, 0x7F))  # written \u00XX, whether or not there is a short way

STRING_CHARACTER: Node = alt(
    [
        Chars(RAW),
        seq(Text("\\"), Chars(tuple((ord(c), ord(c)) for c in sorted(_SHORT.values())))),
        seq(Text("\\u00"), Chars(((48, 49),)), Chars(((48, 57), (65, 70), (97, 102)))),
        seq(Text("\\u007"), Chars(((70, 70), (102, 102)))),
    ]
)
"""Any one character inside a JSON string."""


def union(*sets: Ranges) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(each for ranges in sets for each in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def intersection(one: Ranges, other: Ranges) -> Ranges:
    return tuple(
        (max(a, c), min(b, d)) for a, b in one for c, d in other if max(a, c) <= min(b, d)
    )  # sorted, since both are


def complement(ranges: Ranges) -> Ranges:
    """All other characters."""
    gaps, at = [], 0
    for low, high in union(ranges):
        gaps.append((at, low - 1))
        at = high + 1
    gaps.append((at, 0x10FFFF))
    return intersection(EVERY, tuple((low, high) for low, high in gaps if low <= high))


def of(characters: Iterable[str]) -> Ranges:
    return union(tuple((ord(c), ord(c)) for c in characters))


NO_BLANK: Ranges = complement(
    union(of("\x1c\x1d\x1e\x1f\x20\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"), ((9, 13), (0x2000, 0x200A)))
)
"""What `str.strip` leaves alone."""


@functools.lru_cache(maxsize=4096)
def in_string(ranges: Ranges) -> Node:
    """One of these characters, as a JSON string spells it."""
    if ranges == EVERY:
        return STRING_CHARACTER
    options: list[Node] = []
    if raw := intersection(ranges, RAW):
        options.append(Text(chr(raw[0][0])) if raw == ((raw[0][0],) * 2,) else Chars(raw))
    short = [letter for code, letter in _SHORT.items() if intersection(ranges, ((code, code),))]
    if len(short) > 1:
        options.append(seq(Text("\\"), Chars(of(short))))
    elif short:
        options.append(Text(f"\\{short[0]}"))
    for low, high in intersection(ranges, _CODED):
        options += [_coded(code) for code in range(low, high + 1)]
    return alt(options) if options else NOTHING


def _coded(code: int) -> Node:
    digits = f"{code:02x}"
    return seq(Text("\\u00"), *(Chars(of({d, d.upper()})) if d.isalpha() else Text(d) for d in digits))


def spelled(text: str) -> Node:
    """Exactly this text, inside a JSON string."""
    return seq(*(in_string(of(character)) for character in text))

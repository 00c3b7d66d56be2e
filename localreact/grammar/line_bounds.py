"""Counting the characters of lines whose bounds a grammar can't hold.

GBNF can't both ban markers from a line and count its characters: the product of the two has tens of
thousands of rules. So a turn's grammar may carry bounds apart, and the engine counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from localreact.types import LineBound


@dataclass(frozen=True, slots=True)
class LineCounter:
    """Where a text stands in its bounded lines. Works on UTF-8, which may be cut anywhere.

    A line is bounded from an opening at its beginning (of several, the longest) to the bound's end.
    """

    bounds: Sequence[LineBound]
    head: bytes | None = b""
    """The line so far, while it may still become an opening."""

    bound: LineBound | None = None
    count: int = 0

    def after(self, piece: bytes) -> LineCounter | None:
        """The counter after more text; None where that breaks a bound."""
        head, bound, count = self.head, self.bound, self.count
        for byte in piece:
            if byte == 10 or (bound is not None and byte == ord(bound.end)):
                if bound is not None and count < bound.least:
                    return None
                head, bound, count = b"" if byte == 10 else None, None, 0
                continue
            if head is not None:
                head += bytes((byte,))
            if bound is not None and byte & 0xC0 != 0x80:
                count += 1
            if head is not None:
                opened = next((each for each in self.bounds if each.opening.encode() == head), None)
                if opened is not None:
                    bound, count = opened, 0
                if not any(_longer(each, head) for each in self.bounds):
                    head = None
            if bound is not None and count > bound.most:
                return None
        return replace(self, head=head, bound=bound, count=count)

    @property
    def awaited(self) -> frozenset[int]:
        """The bytes with which the line may go on towards an opening."""
        head = self.head
        if head is None:
            return frozenset()
        return frozenset(each.opening.encode()[len(head)] for each in self.bounds if _longer(each, head))

    @property
    def may_end(self) -> bool:
        """Whether the text may end here, as far as the bounds go."""
        return self.bound is None or self.count >= self.bound.least


def _longer(bound: LineBound, head: bytes) -> bool:
    opening = bound.opening.encode()
    return opening.startswith(head) and opening != head

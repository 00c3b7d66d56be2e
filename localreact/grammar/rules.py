"""Grammars as data: what a schema, a pattern or a marker ban compiles to, for languages without them.

GBNF and regexes know nothing of JSON Schema; they are written from these few nodes (`gbnf.py`). Texts
are sequences of characters (code points); engines turn them into bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """Exactly this text; empty for nothing."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of ranges of code points, each from its first to its last."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Seq:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of several; without options, nothing fits."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """From `least` to `most` times; `most` None for any number."""

    part: Node
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Ref:
    """A rule, by its name. Rules may refer to themselves."""

    name: str


Node: TypeAlias = Text | Chars | Seq | Alt | Repeat | Ref


@dataclass(frozen=True, slots=True)
class Rules:
    """A grammar: where it starts, and the rules that it refers to."""

    start: Node
    rules: Mapping[str, Node] = field(default_factory=dict)

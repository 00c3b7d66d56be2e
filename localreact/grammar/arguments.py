"""Bracket arguments with a schema of their own, for languages that know no "and"."""

from __future__ import annotations

from collections.abc import Sequence

from localreact.errors import GrammarError
from localreact.grammar import patterns
from localreact.grammar.characters import Ranges, complement, intersection, of, union
from localreact.grammar.markers import marker_pattern
from localreact.grammar.nodes import NOTHING, alt
from localreact.grammar.rules import Chars, Node, Text
from localreact.types import JsonSchema

PLAIN: Ranges = complement(union(((0, 0x1F), (0x7F, 0x7F)), of("]:：")))
"""Printable characters that neither end a bracket argument nor could be part of a marker's end."""


def bracket_argument(schema: JsonSchema, markers: Sequence[str]) -> Node | None:
    """What fits the schema of a string and may stand in brackets; None where only any free text can be said
    (a pattern that no grammar holds is checked after the turn). Where a pattern has to hold, colons are left
    out, since it can't be told which of them would end a marker."""
    if (values := values_of(schema)) is not None:
        found = marker_pattern(markers)
        return alt(Text(v) for v in values if v.isprintable() and "]" not in v and not found.search(v))
    if "pattern" not in schema:
        return None
    try:
        tree = patterns.parse(schema["pattern"])
    except GrammarError:
        return None
    return patterns.written(tree, lambda ranges: _chars(intersection(ranges, PLAIN)))


def values_of(schema: JsonSchema) -> list[str] | None:
    """The only texts that fit, where there are such."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if values is None else [str(value) for value in values]


def _chars(ranges: Ranges) -> Node:
    return Chars(ranges) if ranges else NOTHING

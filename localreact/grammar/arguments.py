"""Bracket arguments: one line that fits the schema of a string."""

from __future__ import annotations

import re
from collections.abc import Sequence

from localreact.errors import GrammarError
from localreact.grammar import patterns
from localreact.grammar.characters import Ranges, complement, intersection, of, union
from localreact.grammar.formats import FORMATS, patterns_of
from localreact.grammar.markers import marker_pattern
from localreact.grammar.nodes import NOTHING, alt
from localreact.grammar.regexes import regex_of
from localreact.grammar.rules import Chars, Node, Text
from localreact.grammar.validation import found
from localreact.types import JsonSchema

_INSIDE: Ranges = complement(union(((0, 0x1F), (0x7F, 0x7F)), of("]")))
"""Printable characters that don't end a bracket argument."""


def bracket_regexes(schema: JsonSchema, markers: Sequence[str], least: int, most: int) -> list[str]:
    """Regexes all of which a text has to fit that fits the schema of a string and may stand in brackets. Its
    length and its markers are held elsewhere.

    Raises:
        GrammarError: nothing fits, or a pattern is none that a grammar here can hold.
    """
    if (values := _values(schema, markers, least, most)) is not None:
        return [regex_of(values)]
    return [regex_of(_legal(tree, _INSIDE)) for tree in _trees(schema, least, most)]


def bracket_argument(schema: JsonSchema, markers: Sequence[str], least: int, most: int) -> Node | None:
    """What fits the schema of a string and may stand in brackets, for languages that know no "and"; None
    where only any free text can be said (a pattern that no grammar holds is checked after the turn). Where a
    pattern has to hold, colons are left out, since it can't be told which of them would end a marker.

    Raises:
        GrammarError: nothing fits.
    """
    if (values := _values(schema, markers, least, most)) is not None:
        return values
    try:
        trees = _trees(schema, least, most)
    except GrammarError:
        return None
    return _legal(trees[0], intersection(_INSIDE, complement(of(":：")))) if trees else None


def _values(schema: JsonSchema, markers: Sequence[str], least: int, most: int) -> Node | None:
    """The only texts that fit, where there are such."""
    if not schema.keys() & {"const", "enum"}:
        return None
    marker, pattern = marker_pattern(markers), schema.get("pattern", "")
    try:
        re.compile(pattern)
    except re.error as error:
        raise GrammarError(f"the pattern {pattern!r} is broken: {error}") from error
    return _some(
        alt(
            Text(value)
            for value in schema.get("enum", [schema.get("const")])
            if isinstance(value, str)
            and least <= len(value) <= most
            and schema.get("const", value) == value
            and found(pattern, value)
            and re.fullmatch(FORMATS.get(schema.get("format", ""), r"[\s\S]*"), value)
            and value.isprintable()
            and "]" not in value
            and not marker.search(value)
        )
    )


def _trees(schema: JsonSchema, least: int, most: int) -> list[Node]:
    """The format and the pattern that have to fit, with the length where nodes can say it."""
    trees = []
    for tree in map(patterns.parse, patterns_of(schema)):
        shorter = patterns.limited(tree, least, most)
        if shorter is None and patterns.lengths(tree)[0] == 0:
            raise GrammarError(f"the pattern {schema['pattern']!r} may fit no text at all")
        trees.append(tree if shorter is None else shorter)
    return trees


def _legal(tree: Node, characters: Ranges) -> Node:
    """The texts of the tree that consist of these characters."""

    def spelled(ranges: Ranges) -> Node:
        legal = intersection(ranges, characters)
        return Chars(legal) if legal else NOTHING

    return _some(patterns.written(tree, spelled))


def _some(node: Node) -> Node:
    if node == NOTHING:
        raise GrammarError("no text fits that may stand in brackets: without ']', a marker, or a colon")
    return node

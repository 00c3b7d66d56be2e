"""Numbers and strings of JSON Schema as rules."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal

from localreact.errors import GrammarError
from localreact.grammar import numbers, patterns
from localreact.grammar.characters import in_string
from localreact.grammar.formats import FORMATS
from localreact.grammar.merging import Plain
from localreact.grammar.nodes import repeat, seq
from localreact.grammar.rulebook import RuleBook
from localreact.grammar.rules import Alt, Node, Text


class SchemaError(GrammarError):
    """A schema that can't be compiled; `pointer` says where."""

    def __init__(self, pointer: str, why: str) -> None:
        super().__init__(f"{why} (at {pointer or '/'})")
        self.pointer, self.why = pointer, why


class Scalars:
    """`leave_out` is told the pointer and keyword of what rules can't hold, or can't count so far."""

    def __init__(
        self, book: RuleBook, leave_out: Callable[[str, str], None], most_counted: int | None
    ) -> None:
        self._book = book
        self._leave_out = leave_out
        self._most_counted = math.inf if most_counted is None else most_counted

    def number(self, schema: Plain, kind: str, at: str) -> Node:
        multiple = schema.get("multipleOf", 1)
        if "multipleOf" in schema and not (kind == "integer" and multiple == 1):
            self._leave_out(at, "multipleOf")
        lows: list[tuple[Decimal, bool]] = []
        highs: list[tuple[Decimal, bool]] = []
        for bounds, key, excluding in (
            (lows, "minimum", False),
            (lows, "exclusiveMinimum", True),
            (highs, "maximum", False),
            (highs, "exclusiveMaximum", True),
        ):
            if key in schema:
                bounds.append((Decimal(repr(schema[key])), excluding))
        least, above = max(lows, default=(None, False))
        most, below = min(highs, key=lambda bound: (bound[0], not bound[1]), default=(None, False))
        if kind == "number":
            return numbers.numbers(least, most, above, below)
        low = None if least is None else math.floor(least) + 1 if above else math.ceil(least)
        high = None if most is None else math.ceil(most) - 1 if below else math.floor(most)
        return numbers.integers(low, high)

    def string(self, schema: Plain, at: str) -> Node:
        least, most = self.counted(schema.get("minLength", 0), schema.get("maxLength"), "Length", at)
        tree: Node | None = None
        if "format" in schema:
            if schema["format"] in FORMATS:
                tree = patterns.parse(f"^(?:{FORMATS[schema['format']]})$")
            else:
                self._leave_out(at, "format")
        if "pattern" in schema:
            if tree is not None:
                self._leave_out(at, "pattern")
            else:
                tree = self.pattern(schema["pattern"], at)
        if tree is None:
            inside = repeat(self._book.character(), least, most)
        else:
            shorter = patterns.limited(tree, least, most)
            if shorter is None:
                for key in schema.keys() & {"minLength", "maxLength"}:
                    self._leave_out(at, key)
            inside = self.written(tree if shorter is None else shorter)
        node = seq(Text('"'), inside, Text('"'))
        return node if tree is None or isinstance(node, Text | Alt) else self._book.rule("string", node)

    def pattern(self, pattern: str, at: str, report: bool = True) -> Node | None:
        """The pattern, unless no grammar can hold it."""
        try:
            re.compile(pattern)
        except re.error as error:
            raise SchemaError(at, f"the pattern {pattern!r} is broken: {error}") from error
        try:
            tree = patterns.parse(pattern)
        except GrammarError:
            tree = None
        if tree is None or patterns.longest_count(tree) > self._most_counted:
            if report:
                self._leave_out(at, "pattern")
            return None
        return tree

    def written(self, tree: Node) -> Node:
        """The tree inside a JSON string."""
        return self._book.short(patterns.written(tree, in_string))

    def counted(self, least: int, most: int | None, what: str, at: str) -> tuple[int, int | None]:
        """Bounds of a number of characters, items or members, as far as the language can count."""
        if least > self._most_counted:
            self._leave_out(at, f"min{what}")
            least = 0
        if most is not None and most > self._most_counted:
            self._leave_out(at, f"max{what}")
            most = None
        return least, most

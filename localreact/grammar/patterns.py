"""Regexes as JSON Schema has them (ECMA-262, as far as it and Python's `re` agree), as nodes.

`parse` gives a tree over characters; `written` spells it, inside a JSON string for example. A pattern
matches anywhere unless it is anchored. What no regular language can say, or nobody should need (look-around,
back-references, word boundaries, flags), is an error that says so.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable

from localreact.errors import GrammarError
from localreact.grammar.characters import EVERY, Ranges, complement, intersection, of, union
from localreact.grammar.nodes import EMPTY, NOTHING, alt, repeat, seq
from localreact.grammar.rules import Alt, Chars, Node, Ref, Repeat, Seq

ANYTHING = Repeat(Chars(EVERY))
_BEGIN, _END = Ref("^"), Ref("$")  # stand for the anchors until they are resolved
_DIGITS: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_BLANK = union(of("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000"), ((0x2000, 0x200A),))
# What only one of ECMA-262 and Python takes for white space is neither \s nor \S.
_MAYBE_BLANK = union(_BLANK, ((0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF)))
_CLASSES: dict[str, Ranges] = {
    "d": _DIGITS,
    "D": complement(_DIGITS),
    "w": _WORD,
    "W": complement(_WORD),
    "s": _BLANK,
    "S": complement(_MAYBE_BLANK),
}
_DOT = complement(of("\n\r\u2028\u2029"))
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_SEEN_AS_ESCAPES: Ranges = ((0, 9), (11, 0x1F))
_QUANTIFIER = re.compile(r"([*+?]|\{(\d+)(?:(,)(\d*))?\})(\??)(\+?)")
_MAX_BRANCHES = 100
_MAX_DEPTH = 50


@functools.lru_cache(maxsize=512)
def parse(pattern: str) -> Node:
    """The pattern as a tree over characters: `Chars` are sets of them.

    Raises:
        GrammarError: it is broken, or asks for what no grammar here can say.
    """
    reader = _Reader(pattern)
    tree = reader.alternatives(0)
    if reader.at < len(pattern):
        raise GrammarError(f"the pattern {pattern!r} has a parenthesis too many")
    return alt(_placed(branch, pattern) for branch in _branches(tree, pattern))


def written(tree: Node, spell: Callable[[Ranges], Node]) -> Node:
    """The tree with every set of characters spelled."""
    match tree:
        case Chars(ranges):
            return spell(ranges)
        case Seq(parts):
            return seq(*(written(part, spell) for part in parts))
        case Alt(options):
            return alt(written(option, spell) for option in options)
        case Repeat(part, least, most):
            return repeat(written(part, spell), least, most)
    return tree


def lengths(tree: Node) -> tuple[int, int | None]:
    """How many characters a text of this tree has: at least, and at most."""
    match tree:
        case Chars():
            return 1, 1
        case Seq(parts):
            both = [lengths(part) for part in parts]
            highs = [high for _, high in both]
            return sum(low for low, _ in both), None if None in highs else sum(h or 0 for h in highs)
        case Alt(options) if options:
            both = [lengths(option) for option in options]
            highs = [high for _, high in both]
            return min(low for low, _ in both), None if None in highs else max(h or 0 for h in highs)
        case Repeat(part, least, most):
            low, high = lengths(part)
            return low * least, 0 if high == 0 else None if None in (high, most) else (high or 0) * (
                most or 0
            )
    return 0, 0


def limited(tree: Node, least: int, most: int | None) -> Node | None:
    """The texts of the tree that have from `least` to `most` characters; None where nodes can't say it."""
    low, high = lengths(tree)
    if (high is not None and high < least) or (most is not None and (low > most or most < least)):
        return NOTHING
    if low >= least and (most is None or (high is not None and high <= most)):
        return tree
    if isinstance(tree, Alt):
        options = [limited(option, least, most) for option in tree.options]
        return None if None in options else alt(option for option in options if option is not None)
    parts = tree.parts if isinstance(tree, Seq) else (tree,)
    loose = [i for i, part in enumerate(parts) if len(set(lengths(part))) > 1]
    if len(loose) != 1 or not isinstance(counted := parts[loose[0]], Repeat):
        return None
    unit, unit_high = lengths(counted.part)
    if unit != unit_high or unit == 0:
        return None
    fixed = low - unit * counted.least
    fewest = max(counted.least, -((fixed - least) // unit))
    allowed = [n for n in (counted.most, None if most is None else (most - fixed) // unit) if n is not None]
    shortened = repeat(counted.part, fewest, min(allowed) if allowed else None)
    return seq(*parts[: loose[0]], shortened, *parts[loose[0] + 1 :])


def longest_count(tree: Node) -> int:
    """The largest number of repetitions that the tree asks to count."""
    match tree:
        case Seq(parts) | Alt(parts):
            return max(map(longest_count, parts), default=0)
        case Repeat(part, least, most):
            return max(least, most or 0, longest_count(part))
    return 0


def takes_escapes(pattern: str) -> bool:
    """Whether llguidance (1.9) may take a quote or a backslash inside a JSON string, escaped, for a character
    of the pattern that isn't either: it does so where a set holds every control character (other than a
    newline), and alternatives may become one set."""
    try:
        sets = _sets(parse(pattern))
    except GrammarError:
        return True  # who knows
    for escaped in map(of, '"\\'):
        without = union(*(ranges for ranges in sets if not intersection(ranges, escaped)))
        if not intersection(complement(without), _SEEN_AS_ESCAPES):
            return True
    return False


def _sets(tree: Node) -> list[Ranges]:
    match tree:
        case Chars(ranges):
            return [ranges]
        case Seq(parts) | Alt(parts):
            return [each for part in parts for each in _sets(part)]
        case Repeat(part):
            return _sets(part)
    return []


def _branches(tree: Node, pattern: str) -> list[tuple[Node, ...]]:
    """Sequences that the tree is one of, with its anchors as parts of their own."""
    if not _anchored(tree):
        return [(tree,)]
    match tree:
        case Ref():
            return [(tree,)]
        case Alt(options):
            found = [branch for option in options for branch in _branches(option, pattern)]
        case Seq(parts):
            each = (_branches(part, pattern) for part in parts)
            found = [sum(choice, ()) for choice in itertools.islice(itertools.product(*each), _MAX_BRANCHES)]
        case _:
            raise GrammarError(f"the pattern {pattern!r} repeats an anchor, which no grammar here can")
    if len(found) >= _MAX_BRANCHES:
        raise GrammarError(f"the pattern {pattern!r} has anchors in too many places")
    return found


def _placed(branch: tuple[Node, ...], pattern: str) -> Node:
    """A branch with whatever may stand around it where it isn't anchored."""
    parts = [part for part in branch if part != EMPTY]
    begins = itertools.takewhile(lambda part: part == _BEGIN, parts)
    ends = itertools.takewhile(lambda part: part == _END, reversed(parts))
    n_begins, n_ends = len(list(begins)), len(list(ends))
    inner = parts[n_begins : len(parts) - n_ends]
    if any(map(_anchored, inner)):
        raise GrammarError(f"the pattern {pattern!r} has an anchor in the middle, which no grammar here can")
    if not inner and not (n_begins and n_ends):
        return ANYTHING
    return seq(*([] if n_begins else [ANYTHING]), *inner, *([] if n_ends else [ANYTHING]))


def _anchored(tree: Node) -> bool:
    match tree:
        case Ref():
            return True
        case Seq(parts) | Alt(parts):
            return any(map(_anchored, parts))
        case Repeat(part):
            return _anchored(part)
    return False


class _Reader:
    """Recursive descent over a pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def alternatives(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise self._no("nests too deep")
        options = [self._sequence(depth)]
        while self._take("|"):
            options.append(self._sequence(depth))
        return alt(options)

    def _sequence(self, depth: int) -> Node:
        parts = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            parts.append(self._quantified(self._atom(depth)))
        return seq(*parts)

    def _quantified(self, atom: Node) -> Node:
        if re.compile(r"\{,\d").match(self.pattern, self.at):
            raise self._no("has a quantifier without a least number, which ECMA-262 takes as it is")
        while found := _QUANTIFIER.match(self.pattern, self.at):
            if atom in (_BEGIN, _END):
                raise self._no("repeats an anchor")
            if found[6]:
                raise self._no("has a quantifier after a quantifier")
            self.at = found.end()
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(found[1], (-1, None))
            if least < 0:
                least = int(found[2])
                most = least if not found[3] else int(found[4]) if found[4] else None
            if most is not None and most < least:
                raise self._no("has a quantifier that ends before it begins")
            atom = repeat(atom, least, most)
            if self.at < len(self.pattern) and self.pattern[self.at] in "*+?":
                raise self._no("has a quantifier after a quantifier")
        return atom

    def _atom(self, depth: int) -> Node:
        if self._take("("):
            return self._group(depth)
        if self._take("["):
            return Chars(self._class())
        character = self._next()
        if character == "^":
            return _BEGIN
        if character == "$":
            return _END
        if character == ".":
            return Chars(_DOT)
        if character in "*+?":
            raise self._no("has a quantifier that repeats nothing")
        if character == "\\":
            if self.pattern[self.at : self.at + 1] in ("A", "Z", "z"):
                return _BEGIN if self._next() == "A" else _END
            return Chars(self._escape())
        return Chars(of(character))

    def _group(self, depth: int) -> Node:
        if self._take("?"):
            if found := re.compile(r"P?<([^\W\d]\w*)>|:").match(self.pattern, self.at):
                self.at = found.end()
            elif re.compile(r"[=!]|<[=!]").match(self.pattern, self.at):
                raise self._no("looks ahead or behind, which no grammar here can")
            else:
                raise self._no("has a flag or a group of a kind that no grammar here can")
        inner = self.alternatives(depth + 1)
        if not self._take(")"):
            raise self._no("has an open parenthesis")
        return inner

    def _class(self) -> Ranges:
        negated = self._take("^")
        if self.pattern[self.at : self.at + 1] == "]":
            raise self._no("has a class that begins with ']'; write it as '\\]'")
        found: list[Ranges] = []
        while not self._take("]"):
            low = self._member()
            following = self.pattern[self.at + 1 : self.at + 2]
            if self.pattern[self.at : self.at + 1] == "-" and following not in ("]", "") and _single(low):
                self.at += 1
                high = self._member()
                if not _single(high):
                    found += [low, of("-"), high]
                elif high[0][0] < low[0][0]:
                    raise self._no("has a range that ends before it begins")
                else:
                    found.append(((low[0][0], high[0][0]),))
            else:
                found.append(low)
        both = _CLASSES["s"] in found and _CLASSES["S"] in found
        members = EVERY if both else union(*found)
        return complement(members) if negated else members

    def _member(self) -> Ranges:
        character = self._next()
        if character != "\\":
            return of(character)
        if self._take("b"):
            return of("\b")
        return self._escape()

    def _escape(self) -> Ranges:
        character = self._next()
        if character in _CLASSES:
            return _CLASSES[character]
        if character == "0" and self.pattern[self.at : self.at + 1].isdigit():
            raise self._no("has an octal escape")
        if character in _CONTROLS:
            return of(_CONTROLS[character])
        if found := re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}").match(self.pattern, self.at - 1):
            self.at = found.end()
            code = int(found[0][1:], 16)
            if 0xD800 <= code <= 0xDFFF:
                raise self._no("has half a surrogate pair; write the character itself")
            return ((code, code),)
        if character.isdigit() or character == "k":
            raise self._no("refers back to a group, which no grammar here can")
        if character in "bB":
            raise self._no("has a word boundary, which no grammar here can")
        if character.isalpha():
            raise self._no(f"has the escape '\\{character}', which no grammar here knows")
        return of(character)

    def _take(self, text: str) -> bool:
        taken = self.pattern.startswith(text, self.at)
        self.at += len(text) * taken
        return taken

    def _next(self) -> str:
        if self.at >= len(self.pattern):
            raise self._no("ends too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def _no(self, why: str) -> GrammarError:
        return GrammarError(f"the pattern {self.pattern!r} {why}")


def _single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]

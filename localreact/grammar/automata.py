"""How large the automaton of a regex would be, found by making it, as far as that is little work."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from localreact.grammar.characters import Ranges
from localreact.grammar.rules import Alt, Chars, Node, Ref, Repeat, Seq, Text

MOST_WORK = 20_000  # places looked at, for all states together
_END = 0


@dataclass
class _Places:
    """Where a text may be inside a regex: each place with the characters that it takes (None: it takes none,
    and is all places after it) and the places that come next."""

    takes: list[Ranges | None] = field(default_factory=lambda: [()])
    after: list[frozenset[int]] = field(default_factory=lambda: [frozenset()])

    def add(self, takes: Ranges | None, after: frozenset[int]) -> int:
        self.takes.append(takes)
        self.after.append(after)
        return len(self.takes) - 1

    def before(self, node: Node, after: frozenset[int]) -> frozenset[int]:
        """The places at which the node begins, given those that come after it."""
        match node:
            case Text(text):
                for character in reversed(text):
                    after = frozenset([self.add(((ord(character), ord(character)),), after)])
                return after
            case Chars(ranges):
                return frozenset([self.add(ranges, after)])
            case Seq(parts):
                for part in reversed(parts):
                    after = self.before(part, after)
                return after
            case Alt(options):
                return frozenset().union(*(self.before(option, after) for option in options))
            case Repeat(part, least, most):
                begin = after
                if most is None:
                    again = self.add(None, frozenset())
                    self.after[again] = begin = self.before(part, after | {again}) | after
                for _ in range((most or least) - least):
                    begin = self.before(part, begin) | after
                for _ in range(least):
                    begin = self.before(part, begin)
                return begin
            case Ref(name):
                raise ValueError(f"the rule {name!r} isn't written out")

    def open(self, places: Iterable[int]) -> frozenset[int]:
        """The places that take characters, and the end."""
        found: set[int] = set()
        waiting, seen = list(places), set[int]()
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            if self.takes[place] is None:
                waiting += self.after[place]
            else:
                found.add(place)
        return frozenset(found)


def written_out(node: Node, rules: Mapping[str, Node]) -> Node:
    """The node with the rules that it refers to, none of which may refer to itself, in their places."""
    match node:
        case Ref(name):
            return written_out(rules[name], rules)
        case Seq(parts):
            return Seq(tuple(written_out(part, rules) for part in parts))
        case Alt(options):
            return Alt(tuple(written_out(option, rules) for option in options))
        case Repeat(part, least, most):
            return Repeat(written_out(part, rules), least, most)
    return node


@functools.lru_cache(maxsize=4096)
def is_little(node: Node) -> bool:
    """Whether the regex of a node without references has a small deterministic automaton. Where the text so
    far doesn't tell how often something counted was repeated, the states are sets of counts: of those there
    may be 2 to the power of the count."""
    places = _Places()
    begin = places.open(places.before(node, frozenset([_END])))
    known, waiting, work = {begin}, [begin], 0
    while waiting:
        state = waiting.pop()
        taking = [(places.takes[place] or (), place) for place in state]
        # Characters that no range's end tells apart lead to the same state.
        for first in {edge for ranges, _ in taking for low, high in ranges for edge in (low, high + 1)}:
            work += len(state)
            if work > MOST_WORK:
                return False
            next_places = [
                after
                for ranges, place in taking
                if any(low <= first <= high for low, high in ranges)
                for after in places.after[place]
            ]
            following = places.open(next_places)
            if following not in known:
                known.add(following)
                waiting.append(following)
    return True

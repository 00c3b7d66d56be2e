"""Marker-free lines as rules, for languages that have no "but not".

An automaton follows the words of all markers at once (the subset construction of Aho and Corasick's
matching); a rule stands for each of its states. Characters go on from state to state; in a state in which a
marker's words have just ended, no colon is legal.
"""

from __future__ import annotations

from collections.abc import Iterable

from localreact.grammar.characters import EVERY, NO_BLANK, Ranges, complement, intersection, of, union
from localreact.grammar.markers import DEFAULT_MARKERS, any_case
from localreact.grammar.nodes import alt, seq
from localreact.grammar.rules import Chars, Node, Ref, Repeat

_COLONS = ":："
_CONTROL: Ranges = ((0, 0x1F), (0x7F, 0x7F))

State = frozenset[tuple[str, int]]
"""Markers of which a beginning of some length was just read."""


def marker_rules(name: str, without: str = "", markers: Iterable[str] = DEFAULT_MARKERS) -> dict[str, Node]:
    """Rules for text of printable characters that holds no marker, and none of the characters `without`:
    NAME is such text that doesn't begin with a blank, so that something is left of it when it is read;
    NAME-blank may begin so. Both have at least one character.

    The automaton (NAME-N) only follows what a colon ends; what comes after the last colon is free. So for
    most tokens, which hold no colon, llama.cpp has to look at one set of characters only.
    """
    words = tuple(" ".join(map(_one_case, marker.split())) for marker in markers)
    letters = sorted({letter for word in words for letter in word} - {" "})
    allowed = complement(union(_CONTROL, of(without)))
    sets = {letter: intersection(of(any_case(letter)), allowed) for letter in letters}
    sets[" "] = of(" ")
    plain = intersection(complement(union(of(_COLONS), *sets.values())), allowed)
    no_colon, rest = Chars(intersection(complement(of(_COLONS)), allowed)), Ref(f"{name}-rest")
    start: State = frozenset()
    numbers = {start: 0}

    def on(state: State, first: Ranges = EVERY) -> Node:
        """One of the characters `first` that the state allows, and what comes after it."""
        targets: dict[State, Ranges] = {start: plain}
        for letter, characters in sets.items():
            after = _after(state, letter, words)
            targets[after] = union(targets.get(after, ()), characters)
        options: list[Node] = []
        for target, characters in targets.items():
            number = numbers.setdefault(target, len(numbers))
            options.append(seq(Chars(intersection(characters, first)), Ref(f"{name}-{number}")))
        if not any(length == len(word) for word, length in state):
            options.append(seq(Chars(of(_COLONS)), Ref(f"{name}-any")))
        return alt(options)

    # llama.cpp looks at the last alternative first.
    begun = seq(Chars(intersection(no_colon.ranges, NO_BLANK)), rest)
    rules: dict[str, Node] = {
        name: alt([on(start, NO_BLANK), begun]),
        f"{name}-blank": alt([Ref(f"{name}-0"), seq(no_colon, rest)]),
        f"{name}-any": alt([Ref(f"{name}-0"), rest]),
        f"{name}-rest": Repeat(no_colon),
    }
    done = 0
    while done < len(numbers):
        rules[f"{name}-{done}"] = on(list(numbers)[done])
        done += 1
    return rules


def _one_case(word: str) -> str:
    return "".join(any_case(letter)[0] for letter in word)


def _after(state: State, letter: str, words: tuple[str, ...]) -> State:
    """Blanks may come in any number where a marker has one, and before its colon."""
    found = set()
    for word, length in (*state, *((word, 0) for word in words)):
        if word[length : length + 1] == letter:
            found.add((word, length + 1))
        elif letter == " " and (length == len(word) or word[length - 1 : length] == " ") and length:
            found.add((word, length))
    return frozenset(found)

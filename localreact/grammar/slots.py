"""Turns as literals and slots: the language of an engine that knows nothing but regexes.

An automaton over a whole turn would have a state for every character that a bound counts, times the
vocabulary. So a turn is cut: literals, choices and repetitions are followed by the engine itself; what lies
between them are slots, each a small regex. A slot of counted characters has a regex for one character, and
the engine counts.

The notation, one rule a line:

    name: "literal" other_rule | "another" (PART ", "){0,3} /regex/
    PART: /regex/                    a regex by its name, in upper case
    PART{12,400}, /regex/{12,400}    a counted slot: from 12 to 400 times what the regex matches
    PART{12,}, (other_rule)?         any number from 12 on; once or not at all
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from localreact.errors import GrammarError
from localreact.grammar.rules import Ref, Text


@dataclass(frozen=True, slots=True)
class Pattern:
    """A slot that a regex matches as a whole."""

    regex: str


@dataclass(frozen=True, slots=True)
class Counted:
    """A slot of characters, each of which the regex matches: as itself, or as a JSON string escapes it."""

    regex: str
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Chain:
    parts: tuple[Slots, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Slots, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    part: Slots
    least: int
    most: int | None


Slots: TypeAlias = Text | Ref | Pattern | Counted | Chain | Choice | Loop


def chain(parts: Iterable[Slots]) -> Slots:
    """One after the other; texts beside each other become one."""
    flat: list[Slots] = []
    for part in parts:
        for each in part.parts if isinstance(part, Chain) else (part,):
            if isinstance(each, Text) and flat and isinstance(flat[-1], Text):
                flat[-1] = Text(flat[-1].text + each.text)
            else:
                flat.append(each)
    return flat[0] if len(flat) == 1 else Chain(tuple(flat))


# --- the notation


def written(node: Slots, terminals: Mapping[str, str]) -> str:
    """A node in the notation. `terminals` are the names of regexes that have one, by regex."""
    match node:
        case Text(text):
            return json.dumps(text, ensure_ascii=False)
        case Ref(name):
            return name
        case Pattern(regex):
            return _regex(regex, terminals)
        case Counted(regex, least, most):
            return f"{_regex(regex, terminals)}{{{least},{'' if most is None else most}}}"
        case Chain(parts):
            return " ".join(_part(part, terminals) for part in parts) or '""'
        case Choice(options):
            if not options:
                raise GrammarError("nothing fits a choice without options")
            return " | ".join(written(option, terminals) for option in options)
        case Loop(part, 0, 1):
            return f"({written(part, terminals)})?"
        case Loop(part, least, most):
            return f"({written(part, terminals)}){{{least},{'' if most is None else most}}}"


def _part(node: Slots, terminals: Mapping[str, str]) -> str:
    inner = written(node, terminals)
    return f"({inner})" if isinstance(node, Choice) else inner


def _regex(regex: str, terminals: Mapping[str, str]) -> str:
    return terminals.get(regex) or f"/{regex}/"  # slashes are escaped already


_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|/(?P<regex>(?:[^/\\]|\\.)+)/|(?P<terminal>[A-Z][A-Z0-9_]*)"""
    r"""|(?P<name>[a-z][A-Za-z0-9_-]*)|(?P<times>\{\d+,\d*\}|\?)|(?P<sign>[|()])|(?P<wrong>\S))"""
)


def read(text: str) -> dict[str, Slots]:
    """The rules of a grammar in the notation, `start` among them.

    Raises:
        GrammarError: it isn't in the notation, or refers to what isn't there.
    """
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith("//")]
    pairs = [line.split(":", 1) for line in lines]
    terminals: dict[str, str] = {}
    for name, *rest in pairs:
        if name.isupper() and rest and re.fullmatch(r"\s*/.+/\s*", rest[0]):
            terminals[name] = rest[0].strip()[1:-1]
    rules: dict[str, Slots] = {}
    for name, *rest in pairs:
        if name in rules or not rest or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            raise GrammarError(f"the grammar has no such rule, or has it twice: {name!r}")
        if name not in terminals:
            rules[name] = _Reader(name, rest[0], terminals).rule()
    nodes = (each for node in rules.values() for each in _nodes(node))
    missing = {each.name for each in nodes if isinstance(each, Ref)} - rules.keys()
    if missing or "start" not in rules:
        raise GrammarError(f"the grammar lacks the rules {sorted(missing or {'start'})}")
    return rules


class _Reader:
    def __init__(self, rule: str, text: str, terminals: Mapping[str, str]) -> None:
        self._rule = rule
        self._terminals = terminals
        self._tokens = [
            (kind, match[kind]) for match in _TOKEN.finditer(text) if (kind := match.lastgroup) is not None
        ]
        self._tokens.append(("end", ""))
        self._at = 0

    def rule(self) -> Slots:
        node = self._alternatives()
        if self._tokens[self._at][0] != "end":
            raise self._wrong()
        return node

    def _alternatives(self) -> Slots:
        options = [self._sequence()]
        while self._tokens[self._at] == ("sign", "|"):
            self._at += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Slots:
        parts: list[Slots] = []
        while (token := self._tokens[self._at])[0] != "end" and token not in (("sign", "|"), ("sign", ")")):
            parts.append(self._item())
        return chain(parts)

    def _item(self) -> Slots:
        kind, text = self._tokens[self._at]
        self._at += 1
        node: Slots
        if kind == "text":
            node = Text(json.loads(text))
        elif kind == "regex":
            node = Pattern(text)
        elif kind == "terminal" and text in self._terminals:
            node = Pattern(self._terminals[text])
        elif kind == "name":
            node = Ref(text)
        elif (kind, text) == ("sign", "("):
            node = self._alternatives()
            if self._tokens[self._at] != ("sign", ")"):
                raise self._wrong()
            self._at += 1
        else:
            self._at -= 1
            raise self._wrong()
        if self._tokens[self._at][0] == "times":
            least, most = _bounds(self._tokens[self._at][1])
            self._at += 1
            if isinstance(node, Pattern) and kind in ("regex", "terminal"):
                return Counted(node.regex, least, most)
            return Loop(node, least, most)
        return node

    def _wrong(self) -> GrammarError:
        kind, text = self._tokens[self._at]
        return GrammarError(f"rule {self._rule!r} of the grammar has {text or kind!r} where it can't be read")


def _bounds(times: str) -> tuple[int, int | None]:
    if times == "?":
        return 0, 1
    least, most = times[1:-1].split(",")
    return int(least), int(most) if most else None


def regexes(rules: Mapping[str, Slots]) -> list[str]:
    """The regexes of all slots, each once."""
    slots = (each for node in rules.values() for each in _nodes(node))
    return list(dict.fromkeys(each.regex for each in slots if isinstance(each, Pattern | Counted)))


def _nodes(node: Slots) -> Iterable[Slots]:
    """The node and all that it consists of."""
    yield node
    match node:
        case Chain(parts) | Choice(parts):
            for part in parts:
                yield from _nodes(part)
        case Loop(part):
            yield from _nodes(part)

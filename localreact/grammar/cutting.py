"""Cutting rules into literals and slots: what is regular and small becomes a regex, strings are counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from localreact.grammar.arguments import bracket_argument
from localreact.grammar.automata import is_little, written_out
from localreact.grammar.characters import STRING_CHARACTER
from localreact.grammar.regexes import regex_of
from localreact.grammar.rules import Alt, Chars, Node, Ref, Repeat, Seq, Text
from localreact.grammar.schema_rules import SchemaRules
from localreact.grammar.slots import Choice, Counted, Loop, Pattern, Slots, chain, written
from localreact.types import JsonSchema

MAX_COST = 1500
"""What a regex slot may cost: about the states of its automaton, each weighed by how many tokens leave it.
At a vocabulary of 49k this much is 0.1 to 0.3 s to build; what costs more is cut smaller."""

_WIDE = 200  # what a character out of thousands weighs


class Cutter:
    """Cuts nodes that share rules; `found` are those rules, cut too, that the nodes so far refer to."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self.rules = rules
        self.found: dict[str, Slots] = {}
        self._costs: dict[str, int | None] = {}
        self._literal: dict[tuple[str, bool], bool] = {}

    def cut(self, node: Node) -> Slots:
        match node:
            case Text():
                return node
            case Seq(parts):
                return chain(self._sequence(self._flat(parts)))
            case Ref(name):
                if self._small(node):
                    return self.cut(self.rules[name])
                if name not in self.found:
                    self.found[name] = Text("")  # a reference to itself finds it
                    self.found[name] = self.cut(self.rules[name])
                return node
            case Repeat(part, least, most) if (unit := self._unit(part)) is not None and most != 1:
                return Counted(regex_of(unit), least, most)
        if self._small(node):
            return self._pattern(node)
        if isinstance(node, Alt):
            return Choice(tuple(map(self.cut, node.options)))
        assert isinstance(node, Repeat)  # a set of characters is always small
        return Loop(self.cut(node.part), node.least, node.most)

    def _pattern(self, node: Node) -> Slots:
        if isinstance(node, Seq) and all(isinstance(part, Text) for part in node.parts):
            return chain(part for part in node.parts if isinstance(part, Text))
        regex = regex_of(node, self.rules)
        return Pattern(regex) if regex else Text("")

    def _flat(self, parts: Iterable[Node]) -> list[Node]:
        flat: list[Node] = []
        for part in parts:
            whole = self._resolved(part)
            if isinstance(whole, Seq):
                flat += self._flat(whole.parts)
            else:  # choices keep their names, since several may share one
                flat.append(part if isinstance(whole, Alt | Ref) else whole)
        return flat

    def _resolved(self, node: Node) -> Node:
        """What a reference stands for; one that leads to itself stays."""
        while isinstance(node, Ref) and self._cost(node) is not None:
            node = self.rules[node.name]
        return node

    def _sequence(self, parts: list[Node]) -> list[Slots]:
        """Literals, whole strings, and between them regexes as long as they stay small."""
        cut: list[Slots] = []
        group: list[Node] = []

        def close() -> None:
            if group:
                cut.append(self._pattern(Seq(tuple(group))))
                group.clear()

        for number, part in enumerate(parts):
            if (
                self._quoted(parts, number)
                or (isinstance(part, Text) and _is_literal(part.text))
                or not self._small(part)
            ):
                close()
                cut.append(self.cut(part))
            else:
                if not self._small(Seq((*group, part))):
                    close()
                group.append(part)
        close()
        return cut

    def _quoted(self, parts: list[Node], number: int) -> bool:
        """Whether a repetition of characters is all that stands between two quotes."""
        match parts[max(number - 1, 0) : number + 2]:
            case [Text(before), Repeat(part), Text(after)]:
                return before.endswith('"') and after.startswith('"') and self._unit(part) is not None
        return False

    def _unit(self, node: Node) -> Node | None:
        """The node with its references resolved, if it fits one character, spelled as itself or by an
        escape."""
        if isinstance(node, Ref):
            node = self._resolved(node)
        if isinstance(node, Chars) or (isinstance(node, Text) and len(node.text) == 1):
            return node
        if isinstance(node, Alt) and node.options:
            units = [self._unit(option) for option in node.options]
            return None if None in units else Alt(tuple(unit for unit in units if unit is not None))
        parts = node.parts if isinstance(node, Seq) else (node,)
        head = parts[0] if parts else node
        if not isinstance(head, Text) or not re.match(r"\\.|\\$", head.text):
            return None
        if not all(isinstance(part, Text | Chars) for part in parts):
            return None
        length = sum(len(part.text) if isinstance(part, Text) else 1 for part in parts)
        return node if length == (6 if head.text.startswith("\\u") else 2) else None

    def _small(self, node: Node) -> bool:
        """Whether a regex slot is right for it: regular, cheap, and without literals worth forcing."""
        cost = self._cost(node)
        cheap = cost is not None and cost <= MAX_COST
        return cheap and not self._literals(node) and is_little(written_out(node, self.rules))

    def _cost(self, node: Node) -> int | None:
        """None where a rule refers to itself."""
        match node:
            case Text(text):
                return len(text.encode())
            case Chars(ranges):
                return min(_WIDE, 1 + sum(high - low + 1 for low, high in ranges) // 8)
            case Ref(name):
                if name not in self._costs:
                    self._costs[name] = None
                    self._costs[name] = self._cost(self.rules[name])
                return self._costs[name]
            case Seq(parts) | Alt(parts):
                costs = [self._cost(part) for part in parts]
                return None if None in costs else sum(cost for cost in costs if cost is not None)
            case Repeat(part, least, most):
                cost = self._cost(part)
                return None if cost is None else cost * max(least, most or 1)

    def _literals(self, node: Node, repeated: bool = False) -> bool:
        match node:
            case Text(text):
                return '"' in text.replace('\\"', "") if repeated else _is_literal(text)
            case Ref(name):
                if (name, repeated) not in self._literal:
                    self._literal[name, repeated] = self._literals(self.rules[name], repeated)
                return self._literal[name, repeated]
            case Seq(parts) | Alt(parts):
                return any(self._literals(part, repeated) for part in parts)
            case Repeat(part, _, most):
                return self._literals(part, repeated or most != 1)
        return False


def _is_literal(text: str) -> bool:
    """Whether a text is worth forcing: structure, or a word, rather than a part of a date or a number."""
    word = len(text) >= 4 and not text.startswith("\\") and any(map(str.isalpha, text))
    return word or '"' in text.replace('\\"', "")


TERMINALS = {regex_of(STRING_CHARACTER): "CHAR"}
"""Regexes that have a name in the notation, which every grammar of ours defines."""


class SlotWriter:
    """Writes the parts of a grammar: literals, and values of JSON Schemas, for which `definitions` writes
    what they consist of at the end of the template."""

    def __init__(self, compact: bool, markers: Sequence[str]) -> None:
        self._markers = tuple(markers)
        self._schemas = SchemaRules(compact=compact, prefix="json-")
        self._cutter = Cutter(self._schemas.book.rules)
        self.helpers: dict[str, Any] = {"definitions": self._definitions}

    def literal(self, text: str) -> str:
        return written(Text(text), TERMINALS)

    def json(self, schema: JsonSchema) -> str:
        return self._expression(self._schemas.add(schema))

    def keywords(self, rule: str, parameters: Sequence[tuple[str, JsonSchema, bool]]) -> str:
        return f"{rule}: {self._expression(self._schemas.keywords(parameters))}"

    def argument(self, schema: JsonSchema, least: int, most: int) -> str:
        node = bracket_argument(schema, self._markers, least, most)
        return f"INNER{{{least},{most}}}" if node is None else self._expression(node)

    def _expression(self, node: Node) -> str:
        return written(self._cutter.cut(node), TERMINALS)

    def _definitions(self) -> str:
        lines = [f"{name}: {written(node, TERMINALS)}" for name, node in self._cutter.found.items()]
        return "\n".join([*lines, *(f"{name}: /{regex}/" for regex, name in TERMINALS.items())])

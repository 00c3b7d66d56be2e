"""The rules that a grammar's schemas share, and the parts that many values have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localreact.grammar import numbers
from localreact.grammar.characters import STRING_CHARACTER, complement, in_string, of, spelled
from localreact.grammar.nodes import EMPTY, NOTHING, alt, maybe, repeat, seq
from localreact.grammar.rules import Alt, Node, Ref, Repeat, Seq, Text


class RuleBook:
    """Names are made of letters, digits and hyphens, and begin with `prefix`."""

    def __init__(self, *, compact: bool = False, prefix: str = "") -> None:
        self.rules: dict[str, Node] = {}
        self.comma, self.colon = (",", ":") if compact else (", ", ": ")
        self._prefix = prefix
        self._names: dict[Node, str] = {}

    def dumps(self, value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(self.comma, self.colon))

    def name(self, base: str) -> str:
        """A name that no rule has yet."""
        stem = self._prefix + (re.sub(r"[^A-Za-z0-9]+", "-", base).strip("-") or "rule")
        name, number = stem, 1
        while name in self.rules:
            number += 1
            name = f"{stem}-{number}"
        self.rules[name] = NOTHING
        return name

    def rule(self, base: str, node: Node) -> Node:
        """The node by a name; equal nodes get one. Nothing, and what is a name already, stay."""
        if isinstance(node, Ref | Text) or node == NOTHING:
            return node
        if node not in self._names:
            self._names[node] = name = self.name(base)
            self.rules[name] = node
        return Ref(self._names[node])

    # --- parts of values

    def character(self) -> Node:
        """One character inside a string."""
        return self._once("char", lambda: STRING_CHARACTER)

    def string(self, least: int = 0, most: int | None = None) -> Node:
        return seq(Text('"'), repeat(self.character(), least, most), Text('"'))

    def anything(self) -> Node:
        """Any JSON value."""
        return self._once("value", self._anything)

    def _anything(self) -> Node:
        value = Ref(f"{self._prefix}value")
        member = seq(self.string(), Text(self.colon), value)
        plain = [self.string(), numbers.NUMBER, *map(Text, ("true", "false", "null"))]
        return alt([self.object(self.listed(member)), self.array(value), *plain])

    def array(self, item: Node, least: int = 0, most: int | None = None) -> Node:
        return seq(Text("["), self.listed(item, least, most), Text("]"))

    def object(self, members: Node) -> Node:
        return seq(Text("{"), members, Text("}"))

    def member(self, name: str, value: Node) -> Node:
        return seq(Text(self.dumps(name) + self.colon), value)

    def listed(self, item: Node, least: int = 0, most: int | None = None) -> Node:
        """Items with commas between them."""
        if item == NOTHING or most == 0:
            return NOTHING if least else EMPTY
        first = seq(item, repeat(self.following(item), max(0, least - 1), None if most is None else most - 1))
        return first if least else maybe(first)

    def following(self, item: Node) -> Node:
        """An item that isn't the first."""
        return self.rule("next", seq(Text(self.comma), item))

    def members(self, declared: Sequence[tuple[Node, bool]], further: Node) -> Node:
        """Declared members in their order, those that aren't needed left out or not; then further ones."""
        after: list[Node] = [repeat(self.following(further)) if further != NOTHING else EMPTY]
        for member, needed in reversed(declared):
            with_comma = seq(Text(self.comma), member)
            after.insert(0, seq(with_comma if needed else maybe(with_comma), after[0]))
        first = next((i for i, (_, needed) in enumerate(declared) if needed), len(declared))
        if first:  # several may be the first: what follows each gets a name, not to be written out again
            after = [self.rule("members", node) if 0 < i <= first else node for i, node in enumerate(after)]
        options = [seq(member, after[i + 1]) for i, (member, _) in enumerate(declared[: first + 1])]
        if first == len(declared):
            options.append(self.listed(further))
        return alt(options)

    def other_name(self, names: Sequence[str], value: Node) -> Node:
        """A member with any name but these."""
        inside = self._other_than(names) if names else repeat(self.character())
        return seq(Text('"'), inside, Text(f'"{self.colon}'), value)

    def _other_than(self, names: Sequence[str], prefix: str = "") -> Node:
        """What may follow the prefix, with which all the names begin, without becoming one of them."""
        branches: dict[str, list[str]] = {}
        for name in names:
            if len(name) > len(prefix):
                branches.setdefault(name[len(prefix)], []).append(name)
        options = [seq(self.short(in_string(complement(of(branches)))), repeat(self.character()))]
        options += [
            seq(spelled(letter), self._other_than(each, prefix + letter)) for letter, each in branches.items()
        ]
        return alt([*options, *([] if prefix in names else [EMPTY])])

    def short(self, node: Node) -> Node:
        """The node with the rule for characters where it allows any."""
        match node:
            case Repeat(part, least, most):
                return repeat(self.short(part), least, most)
            case Seq(parts):
                return seq(*map(self.short, parts))
            case Alt(options):
                return self.character() if node == STRING_CHARACTER else alt(map(self.short, options))
        return node

    def _once(self, name: str, make: Callable[[], Node]) -> Node:
        name = f"{self._prefix}{name}"
        if name not in self.rules:
            self.rules[name] = NOTHING  # so that it may refer to itself
            self.rules[name] = make()
        return Ref(name)


def pointer_token(name: str) -> str:
    """A name as a part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def resolve(root: Mapping[str, Any], reference: object) -> Any:
    """What a reference within a schema leads to.

    Raises:
        LookupError: nothing.
    """
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise LookupError(f"the reference {reference!r} doesn't lead into this schema")
    found: Any = root
    for token in reference[1:].split("/")[1:]:
        token = re.sub("%([0-9A-Fa-f]{2})", lambda code: chr(int(code[1], 16)), token)
        token = token.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and token in found:
            found = found[token]
        elif isinstance(found, list) and token.isdigit() and int(token) < len(found):
            found = found[int(token)]
        else:
            raise LookupError(f"the reference {reference!r} leads nowhere")
    return found

"""Rules as regexes, in the dialect of Rust's regex crate (which outlines reads).

What is written is also what Python's `re` reads: escapes are `\\xHH`, `\\uHHHH` and `\\UHHHHHHHH`.
"""

from __future__ import annotations

from collections.abc import Mapping

from localreact.errors import GrammarError
from localreact.grammar.rules import Alt, Chars, Node, Ref, Repeat, Seq, Text

_NO_RULES: Mapping[str, Node] = {}
_SPECIAL = set("\\.+*?()|[]{}^$#&-~/ ")


def regex_of(node: Node, rules: Mapping[str, Node] = _NO_RULES, _inside: tuple[str, ...] = ()) -> str:
    """A regex that matches, as a whole, exactly the texts of the node, which may refer to the rules.

    Raises:
        GrammarError: a rule refers to itself, so that it isn't regular; or nothing fits at all.
    """
    match node:
        case Text(text):
            return "".join(map(escaped, text))
        case Chars(ranges):
            if not ranges:
                raise GrammarError("nothing fits a set of no characters")
            if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
                return escaped(chr(ranges[0][0]))
            return f"[{''.join(map(_range, ranges))}]"
        case Seq(parts):
            return "".join(_grouped(part, rules, _inside) for part in parts)
        case Alt(options):
            if not options:
                raise GrammarError("nothing fits a choice without options")
            return "|".join(regex_of(option, rules, _inside) for option in options)
        case Repeat(part, least, most):
            inner = regex_of(part, rules, _inside)
            inner = inner if isinstance(part, Chars) else f"(?:{inner})"
            return inner + times(least, most)
        case Ref(name):
            if name in _inside:
                raise GrammarError(f"rule {name!r} refers to itself: that isn't regular")
            return regex_of(rules[name], rules, (*_inside, name))


def escaped(character: str) -> str:
    """One character as itself, inside or outside of brackets."""
    if character in _SPECIAL:
        return f"\\{character}" if character != " " else " "
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _grouped(part: Node, rules: Mapping[str, Node], inside: tuple[str, ...]) -> str:
    inner = regex_of(part, rules, inside)
    while isinstance(part, Ref):
        part = rules[part.name]
    return f"(?:{inner})" if isinstance(part, Alt) else inner


def _range(ends: tuple[int, int]) -> str:
    low, high = ends
    if low == high:
        return escaped(chr(low))
    return f"{escaped(chr(low))}-{escaped(chr(high))}"


def times(least: int, most: int | None) -> str:
    """A repetition, as it stands after what is repeated."""
    known = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
    if (least, most) in known:
        return known[least, most]
    return f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"

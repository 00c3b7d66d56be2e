"""GBNF, the grammar language of llama.cpp: written from rules, and read back.

Source of the language: grammars/README.md in ggml-org/llama.cpp, and its parser (src/llama-grammar.cpp),
which counts no repetition beyond 2,000: a larger maximum silently becomes none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from localreact.errors import GrammarError
from localreact.grammar.nodes import EMPTY, alt, repeat, seq
from localreact.grammar.rules import Alt, Chars, Node, Ref, Repeat, Rules, Seq, Text

MOST_COUNTED = 2000

_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"', "[": "\\[", "]": "\\]"}


def literal(text: str) -> str:
    """Exactly this text."""
    return '"' + "".join(_ESCAPES[c] if c in '\n\r\t\\"' else _character(ord(c)) for c in text) + '"'


def expression(node: Node) -> str:
    """A node as the right side of a rule.

    Raises:
        GrammarError: nothing fits it, or it counts too far.
    """
    if isinstance(node, Alt):
        if not node.options:
            raise GrammarError("a rule that no text fits can't be written in GBNF")
        return " | ".join(map(expression, node.options))
    if isinstance(node, Seq):
        return " ".join(_atom(part) if isinstance(part, Alt) else expression(part) for part in node.parts)
    if isinstance(node, Repeat):
        return _atom(node.part) + _quantifier(node.least, node.most)
    return _atom(node)


def definitions(rules: Mapping[str, Node]) -> str:
    """Rules, a line each."""
    return "\n".join(f"{name} ::= {expression(node)}" for name, node in rules.items())


def named(rules: Mapping[str, Node]) -> dict[str, Node]:
    """The rules with a name for whatever is counted: llama.cpp multiplies what a group in parentheses
    holds with its count, and refuses more than 2,000."""
    result: dict[str, Node] = {}

    def without_groups(node: Node, name: str) -> Node:
        match node:
            case Seq(parts):
                return Seq(tuple(without_groups(part, name) for part in parts))
            case Alt(options):
                return Alt(tuple(without_groups(option, name) for option in options))
            case Repeat(part, least, most):
                part = without_groups(part, name)
                if isinstance(part, Seq | Alt | Repeat) and max(least, most or 0) > 1:
                    number = sum(each.startswith(f"{name}-part") for each in result)
                    result[f"{name}-part-{number}"] = part
                    part = Ref(f"{name}-part-{number}")
                return Repeat(part, least, most)
        return node

    for name, node in rules.items():
        result[name] = without_groups(node, name)
    return result


def _atom(node: Node) -> str:
    match node:
        case Text(text):
            return literal(text)
        case Chars(ranges):
            return "[" + "".join(_range(low, high) for low, high in ranges) + "]"
        case Ref(name):
            return name
    return f"({expression(node)})"


def _quantifier(least: int, most: int | None) -> str:
    if max(least, most or 0) > MOST_COUNTED:
        raise GrammarError(
            f"GBNF can't count to {max(least, most or 0):,}: llama.cpp stops at {MOST_COUNTED:,}",
            "Ask for lower bounds, or use the engine llguidance.",
        )
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    if (least, most) in short:
        return short[least, most]
    return f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"


def _range(low: int, high: int) -> str:
    first, last = _in_class(low), _in_class(high)
    return first if low == high else f"{first}-{last}" if high > low + 1 else first + last


def _in_class(code: int) -> str:
    character = chr(code)
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character in "^-" or not 32 < code < 127:
        return f"\\x{code:02X}" if code < 256 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
    return character


def _character(code: int) -> str:
    return chr(code) if code >= 32 and code != 127 else f"\\x{code:02X}"


# --- reading it

_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\r\n]|\#[^\n]*)+) | (?P<rule>[A-Za-z0-9-]+)[ \t]*::= | (?P<name>[A-Za-z0-9-]+)
    | "(?P<text>(?:[^"\\]|\\.)*)" | \[(?P<class>(?:[^\]\\]|\\.)*)\]
    | \{(?P<least>\d+)(?P<comma>,?)(?P<most>\d*)\} | (?P<sign>[()|*+?])""",
    re.X | re.S,
)
_CODE = re.compile(r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\(.)|(.)", re.S)
_LETTERS = {"n": 10, "r": 13, "t": 9}


def read(text: str) -> Rules:
    """The rules of a GBNF text that begins at `root`: the part of GBNF that `definitions` writes.

    Raises:
        GrammarError: it isn't GBNF, or a rule is missing.
    """
    tokens: list[re.Match[str]] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise GrammarError(f"not GBNF at {text[at : at + 20]!r}")
        at = found.end()
        if found.lastgroup != "space":
            tokens.append(found)
    rules: dict[str, Node] = {}
    while tokens:
        head = tokens.pop(0)
        if head["rule"] is None or head["rule"] in rules:
            raise GrammarError(f"not a new GBNF rule at {head[0]!r}")
        rules[head["rule"]] = _alternatives(tokens)
    if missing := {"root", *_references(rules.values())} - rules.keys():
        raise GrammarError(f"the GBNF rule {min(missing)!r} is missing")
    return Rules(Ref("root"), rules)


def _alternatives(tokens: list[re.Match[str]]) -> Node:
    options = [_sequence(tokens)]
    while tokens and tokens[0]["sign"] == "|":
        tokens.pop(0)
        options.append(_sequence(tokens))
    return alt(options)


def _sequence(tokens: list[re.Match[str]]) -> Node:
    parts: list[Node] = []
    while tokens and tokens[0]["rule"] is None and tokens[0]["sign"] not in ("|", ")"):
        token = tokens.pop(0)
        part: Node
        if token["name"] is not None:
            part = Ref(token["name"])
        elif token["text"] is not None:
            part = Text("".join(map(chr, _codes(token["text"]))))
        elif token["class"] is not None:
            part = _class(token["class"])
        elif token["sign"] == "(":
            part = _alternatives(tokens)
            if not tokens or tokens.pop(0)["sign"] != ")":
                raise GrammarError("a GBNF group isn't closed")
        else:
            raise GrammarError(f"GBNF repeats nothing at {token[0]!r}")
        while tokens and (tokens[0]["least"] is not None or tokens[0]["sign"] in ("*", "+", "?")):
            part = _repeated(part, tokens.pop(0))
        parts.append(part)
    return seq(*parts) if parts else EMPTY


def _repeated(part: Node, token: re.Match[str]) -> Node:
    if token["sign"]:
        return repeat(part, *{"*": (0, None), "+": (1, None), "?": (0, 1)}[token["sign"]])
    least = int(token["least"])
    most = least if not token["comma"] else int(token["most"]) if token["most"] else None
    if max(least, most or 0) > MOST_COUNTED:
        raise GrammarError(f"llama.cpp doesn't count to {max(least, most or 0)}")
    return repeat(part, least, most)


def _class(inside: str) -> Node:
    codes = [(code, raw) for code, raw in _coded(inside)]
    ranges, i = [], 0
    while i < len(codes):
        code = codes[i][0]
        if i + 2 < len(codes) and codes[i + 1][1] == "-":
            ranges.append((code, codes[i + 2][0]))
            i += 3
        else:
            ranges.append((code, code))
            i += 1
    return Chars(tuple(ranges))


def _codes(text: str) -> list[int]:
    return [code for code, _ in _coded(text)]


def _coded(text: str) -> Iterable[tuple[int, str]]:
    for found in _CODE.finditer(text):
        digits = found[1] or found[2] or found[3]
        if digits:
            yield int(digits, 16), found[0]
        else:
            letter = found[4] or found[5]
            yield _LETTERS.get(letter, ord(letter)) if found[4] else ord(letter), found[0]


def _references(nodes: Iterable[Node]) -> Iterable[str]:
    for node in nodes:
        match node:
            case Ref(name):
                yield name
            case Seq(parts) | Alt(parts):
                yield from _references(parts)
            case Repeat(part):
                yield from _references([part])

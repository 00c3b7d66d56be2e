"""Whole turns as one regex, for servers that enforce those and nothing better.

Written from the turn's literals and slots (`slots.py`), all of which are regexes already; what has to be put
together is the choices and repetitions around them. A turn is regular unless a value nests to any depth.

Servers have regex compilers of several kinds (Rust's, xgrammar's, outlines', Python's): what is written here
stays with what all of them read alike. The whole text has to match, so there are no anchors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from localreact.errors import GrammarError
from localreact.grammar.regexes import escaped, times
from localreact.grammar.rules import Ref, Text
from localreact.grammar.slots import Chain, Choice, Counted, Loop, Pattern, Slots, read
from localreact.types import TurnGrammar, TurnSpec

LONGEST = 200_000  # characters; rules that several places refer to are written out in each

_HINT = "Leave the tool out, or use a server that enforces a grammar or a JSON Schema."
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|.)")


def turn_regex(slots: Callable[[TurnSpec], TurnGrammar], spec: TurnSpec) -> TurnGrammar:
    """The regex of the turns that a protocol writes as `slots`.

    Raises:
        GrammarError: they aren't regular, or the regex would be too long; it names the tool.
    """
    try:
        return TurnGrammar("regex", _portable(_whole(read(slots(spec).text))))
    except GrammarError:
        for tool in spec.tools:
            alone = replace(spec, tools=(tool,), answer=False, insufficient=False)
            try:
                _whole(read(slots(alone).text))
            except GrammarError as error:
                raise GrammarError(
                    f"the arguments of tool {tool.name!r} can't be held by a regex: {error.message}", _HINT
                ) from error
        raise


def _whole(rules: Mapping[str, Slots]) -> str:
    return _regex_of(rules["start"], rules, ())


def _regex_of(node: Slots, rules: Mapping[str, Slots], inside: tuple[str, ...]) -> str:
    match node:
        case Text(text):
            return "".join(map(escaped, text))
        case Pattern(regex):
            return f"(?:{regex})"
        case Counted(regex, least, most):
            return f"(?:{regex}){times(least, most)}"
        case Chain(parts):
            return "".join([_regex_of(part, rules, inside) for part in parts])
        case Choice(options):
            return f"(?:{'|'.join([_regex_of(option, rules, inside) for option in options])})"
        case Loop(part, least, most):
            return f"(?:{_regex_of(part, rules, inside)}){times(least, most)}"
        case Ref(name):
            if name in inside:
                raise GrammarError("a value in it nests to any depth, which isn't regular")
            regex = _regex_of(rules[name], rules, (*inside, name))
            if len(regex) > LONGEST:
                raise GrammarError(f"that takes more than {LONGEST:,} characters")
            return regex


def _portable(regex: str) -> str:
    """Escapes as all compilers read them: some take any number of digits after `\\x`, and some know no
    escaped `&`, `~` or `#`."""

    def rewritten(found: re.Match[str]) -> str:
        escape = found[1]
        if escape == "/":
            return escape
        if escape in "&~#":
            return f"\\u{ord(escape):04x}"
        return f"\\u00{escape[1:]}" if len(escape) == 3 else found[0]

    return _ESCAPE.sub(rewritten, regex)

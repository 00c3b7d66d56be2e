"""GBNF without a model: for looking at grammars."""

from __future__ import annotations

from localreact.grammar import gbnf
from localreact.grammar.line_bounds import LineCounter
from localreact.grammar.recogniser import Recogniser
from localreact.types import TurnGrammar


def check(grammar: TurnGrammar) -> None:
    """
    Raises:
        GrammarError: it isn't GBNF.
    """
    gbnf.read(grammar.text)


def accepts(grammar: TurnGrammar, text: str) -> bool:
    """Whether the text is exactly one legal turn."""
    data = text.encode("utf-8", "replace")
    lines = LineCounter(grammar.bounds).after(data)
    if lines is None or not lines.may_end:
        return False
    return Recogniser(gbnf.read(grammar.text)).accepts(data.decode())

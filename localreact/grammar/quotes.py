"""Quotes that can't be made up: a verbatim stretch of an observation, as a grammar and as a check.

A quote has at least QUOTE_MIN characters, or is the whole where the observation is shorter. In a grammar
it is text inside a JSON string, so the observation is escaped first, and its pieces are whole characters
or whole escapes: no quote is cut inside one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from os.path import commonprefix

from localreact.grammar.lark import literal
from localreact.types import Evidence, Source, TurnSpec

QUOTE_MIN = 12

_CHARACTER = r'(?:[^"\\\x00-\x1f]|\\(?:["\\bfnrt]|u[0-9a-f]{4}))'
"""One character of a JSON string as `json.dumps` writes it."""


def source(step: int, content: str, shown: str) -> Source | None:
    """What can be cited of an observation: what the model was shown of it, without the mark that says
    how much was left out. None where that is nothing."""
    text = commonprefix([content, shown])  # noqa: RUF071  (of texts, not of paths)
    text = text.encode("utf-8", "replace").decode()
    return Source(step, text) if text.strip() else None


def stretch(text: str, longest: int) -> str:
    """A Lark terminal expression for the inside of a JSON string that quotes such a text.

    Source of `substring_chunks`: docs/syntax.md in guidance-ai/llguidance.
    """
    pieces = [json.dumps(character, ensure_ascii=False)[1:-1] for character in text]
    if len(pieces) < QUOTE_MIN:
        return literal("".join(pieces))
    chunks = json.dumps({"substring_chunks": pieces}, ensure_ascii=False)
    return f"/{_CHARACTER}{{{QUOTE_MIN},{max(QUOTE_MIN, longest)}}}/ & %regex {chunks}"


def objection(evidence: Sequence[Evidence], spec: TurnSpec) -> str:
    """Why evidence can't be accepted; empty where it can. A grammar admits no such evidence, so this
    only happens where none is enforced."""
    if not spec.sources:
        return "this answer takes no evidence; give the answer alone" if evidence else ""
    if not evidence:
        return "an answer needs evidence: quote a result word for word"
    if len(evidence) > spec.quotes_max:
        return f"at most {spec.quotes_max} quotes can be given as evidence"
    texts = {each.step: each.text for each in spec.sources}
    for each in evidence:
        if (text := texts.get(each.step)) is None:
            steps = ", ".join(map(str, texts))
            return f"step {each.step} has no result to quote; these have: {steps}"
        if each.quote not in text:
            start = each.quote if len(each.quote) <= 80 else each.quote[:80] + "…"
            return f"the quote {start!r} is not in the result of step {each.step}"
        if len(each.quote) < QUOTE_MIN and each.quote != text:
            return f"the quote {each.quote!r} is too short: at least {QUOTE_MIN} characters"
        if len(each.quote) > max(QUOTE_MIN, spec.quote_max):
            return f"a quote has at most {spec.quote_max} characters"
    return ""

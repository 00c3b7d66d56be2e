"""Whether a model reasons before its turns, and between which tags."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from localreact.endpoints.base import Endpoint
from localreact.errors import UsageError
from localreact.types import Reasoning

PAIRS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<reasoning>", "</reasoning>"),
)


def reasoning_of(
    card: Mapping[str, Any], template: str, generation_prompt: str, vocabulary: Collection[str] = ()
) -> Reasoning | None:
    """From a model card's `[reasoning]`, else the chat template, else the vocabulary's own tokens.

    Tags that only the vocabulary knows, or that the template closes again before the model speaks, are
    left alone by default: such a model can, but isn't meant to, reason.
    """
    found = Reasoning(**card) if card else None
    for open_, close in PAIRS:
        if found is None and close in template:
            found = Reasoning(open_, close)
    for open_, close in PAIRS:
        if found is None and {open_, close} <= set(vocabulary):
            found = Reasoning(open_, close, tokens=0)
    if found is None:
        return None
    before = generation_prompt.rstrip()
    if before.endswith(found.close):
        return replace(found, tokens=0)
    return replace(found, opened=before.endswith(found.open))


def reasoning_budget(endpoint: Endpoint, asked: int | None) -> int:
    """Tokens for reasoning before a turn: as asked for, or what is usual with the model.

    Raises:
        UsageError: the model isn't known to reason.
    """
    known = endpoint.reasoning
    if asked is None:
        return known.tokens if known else 0
    if asked and known is None:
        raise UsageError(
            f"{endpoint.name} isn't known to reason: there are no tags for it in its chat template "
            "or vocabulary",
            "Leave reasoning_tokens out, or name the tags in a model card, under [reasoning].",
        )
    return asked

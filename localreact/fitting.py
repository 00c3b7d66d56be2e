"""Fits what is asked for to what an endpoint can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from localreact.endpoints.cards import ModelCard
from localreact.grammar.answers import answer_type
from localreact.grammar.schema import enforceable
from localreact.loop import Loop
from localreact.protocols import Protocol
from localreact.types import Source, ToolSpec, TurnSpec


def spelling(card: ModelCard, protocol: str | None, asked: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The one asked for; the card's goes with the card's protocol only."""
    if asked is not None:
        return asked
    return card.spelling if protocol in (None, card.protocol) else {}


def for_run(loop: Loop, tool_choice: str, answer: Any) -> Loop:
    """The loop with what is asked for in one run. A type for the answer is held as far as the endpoint can;
    the type itself checks the rest.

    Raises:
        UsageError: no such tool choice, or nothing that can be an answer's type.
        GrammarError: it can't be held by a grammar, or the protocol has no words for it.
    """
    policy, endpoint = replace(loop.policy, tool_choice=tool_choice), loop.endpoint
    if answer is None:
        return replace(loop, policy=policy)
    kind = answer_type(answer)
    if not loop.languages:
        loop.protocol.check(TurnSpec(answer_schema=kind.schema))
        return replace(loop, policy=replace(policy, answer_type=kind, answer_schema=kind.schema))
    enforced, left_out = enforceable(ToolSpec("finish", "", kind.schema), loop.languages[0])
    policy = replace(
        policy,
        answer_type=kind,
        answer_schema=enforced.parameters,
        answer_relaxations=tuple(left_out),
    )
    if (grammar := loop.grammar(TurnSpec(answer_schema=policy.answer_schema))) is not None:
        endpoint.check(grammar)
    return replace(loop, policy=policy)


def sample_sources(protocol: Protocol) -> tuple[Source, ...]:
    """Something to cite, to see whether that can be enforced.

    Raises:
        GrammarError: the protocol has no place for citations.
    """
    sources = (Source(1, "What a tool might have said."),)
    protocol.grammar(TurnSpec(sources=sources), "lark")
    return sources

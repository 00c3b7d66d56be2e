"""Fits what is asked for to what an endpoint can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from localreact.endpoints.base import Endpoint
from localreact.endpoints.cards import ModelCard
from localreact.grammar.answers import answer_type
from localreact.grammar.schema import enforceable
from localreact.policy import Policy
from localreact.protocols import Protocol
from localreact.types import Source, ToolSpec, TurnSpec


def spelling(card: ModelCard, protocol: str | None, asked: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The one asked for; the card's goes with the card's protocol only."""
    if asked is not None:
        return asked
    return card.spelling if protocol in (None, card.protocol) else {}


def with_answer(policy: Policy, endpoint: Endpoint, answer: Any) -> Policy:
    """The policy with a type for the answer, held as far as the endpoint can; the type itself checks the
    rest.

    Raises:
        UsageError: nothing that can be an answer's type.
        GrammarError: it can't be held by a grammar.
    """
    kind = answer_type(answer)
    if not endpoint.languages:
        return replace(policy, answer_type=kind, answer_schema=kind.schema)
    enforced, _ = enforceable(ToolSpec("finish", "", kind.schema), endpoint.languages[0])
    return replace(policy, answer_type=kind, answer_schema=enforced.parameters)


def sample_sources(protocol: Protocol) -> tuple[Source, ...]:
    """Something to cite, to see whether that can be enforced.

    Raises:
        GrammarError: the protocol has no place for citations.
    """
    sources = (Source(1, "What a tool might have said."),)
    protocol.grammar(TurnSpec(sources=sources), "lark")
    return sources

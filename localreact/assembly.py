"""Puts an agent's parts together, and sees that they fit: turns that can't be held are errors here, before
any run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from localreact import context, fitting, plans
from localreact.archive import Archive
from localreact.budgets import Budgets
from localreact.endpoints.base import IN_PROCESS, Endpoint, level_of
from localreact.examples import examples_for
from localreact.grammar.schema import Relaxation, all_enforceable
from localreact.loop import Loop
from localreact.native import NATIVE, open_native
from localreact.policy import Policy
from localreact.protocols import protocol as named_protocol
from localreact.sittings import Parts
from localreact.tools import Toolbox
from localreact.tools.permission import Permission
from localreact.types import Sampling, ToolSpec, TurnSpec


def assembled(
    endpoint: Endpoint,
    toolbox: Toolbox,
    budgets: Budgets,
    sampling: Sampling,
    permission: Permission,
    archive: Archive | None,
    *,
    protocol: str | None,
    spelling: Mapping[str, Any] | None,
    examples: int | None,
    summaries: bool,
    rules: Callable[[tuple[ToolSpec, ...]], Policy],
) -> tuple[Parts, list[Relaxation]]:
    """The parts, and what of the tools' schemas no grammar holds. `rules` make a policy of the
    tools as the grammar holds them.

    Raises:
        GrammarError: a tool's schema, citing or planning can't be enforced.
        UsageError: rules that make no sense together, or no such protocol.
    """
    native, protocol = (protocol, None) if protocol in NATIVE else (None, protocol)
    card = endpoint.card
    spelling = fitting.spelling(card, protocol, spelling)
    examples = card.examples if examples is None else examples
    specs, relaxations = all_enforceable(toolbox.specs, endpoint.languages)
    policy = rules(specs)
    loop = Loop(
        endpoint,
        named_protocol(protocol or card.protocol, spelling),
        toolbox,
        policy,
        budgets,
        sampling,
        permission,
        summaries,
    )
    planning = (plans.ANY,) if policy.strategy == "plan" else ()
    if planning:
        plans.check(loop.protocol, budgets)
    sources = fitting.sample_sources(loop.protocol) if policy.cite else ()
    language, level = "", endpoint.level
    if (grammar := loop.grammar(TurnSpec((*specs, *planning), sources=sources))) is not None:
        endpoint.check(grammar)
        language = grammar.language
        if level != IN_PROCESS:
            level = level_of((language,))
    opening = context.opening(
        endpoint.chat,
        loop.protocol,
        loop.protocol.instructions((*toolbox.specs, *planning), policy.cite),
        examples_for(toolbox.specs, examples),
        policy.cite,
    )
    calling = open_native(endpoint, loop, native == "auto") if native else None
    return Parts(loop, calling, opening, spelling, examples, language, level, archive), relaxations

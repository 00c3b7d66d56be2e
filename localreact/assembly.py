"""Puts an agent's parts together, and sees that they fit: turns that can't be held are errors here, before
any run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from localreact import context, fitting, plans
from localreact.archive import Archive
from localreact.budgets import Budgets
from localreact.endpoints.base import IN_PROCESS, Endpoint, level_of
from localreact.errors import GrammarError
from localreact.examples import examples_for
from localreact.grammar.schema import Relaxation, all_enforceable
from localreact.loop import Loop
from localreact.native import NATIVE, open_native
from localreact.policy import Policy
from localreact.protocols import protocol as named_protocol
from localreact.sittings import Parts
from localreact.tools import Toolbox
from localreact.tools.permission import Permission
from localreact.types import Sampling, ToolSpec, TurnGrammar, TurnSpec


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
    loop, relaxations, grammar = _held(
        Loop(
            endpoint,
            named_protocol(protocol or card.protocol, spelling),
            toolbox,
            rules(toolbox.specs),
            budgets,
            sampling,
            permission,
            summaries,
        ),
        rules,
    )
    policy, planning = loop.policy, _planning(loop.policy)
    language, level = "", endpoint.level
    if grammar is not None:
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


def _held(
    loop: Loop, rules: Callable[[tuple[ToolSpec, ...]], Policy]
) -> tuple[Loop, list[Relaxation], TurnGrammar | None]:
    """The loop with its tools as a grammar holds them, in the first language in which the endpoint takes
    turns over all of them: a server's compiler may refuse what it otherwise enforces.

    Raises:
        GrammarError: there is none; it says why not in the first.
    """
    endpoint, failure = loop.endpoint, None
    while True:
        specs, relaxations = all_enforceable(loop.toolbox.specs, loop.languages)
        loop = replace(loop, policy=rules(specs))
        planning = _planning(loop.policy)
        if planning:
            plans.check(loop.protocol, loop.budgets)
        sources = fitting.sample_sources(loop.protocol) if loop.policy.cite else ()
        try:
            grammar = loop.grammar(TurnSpec((*specs, *planning), sources=sources))
        except GrammarError as error:
            raise failure or error from None
        if grammar is None:
            return loop, relaxations, None
        try:
            endpoint.check(grammar)
        except GrammarError as error:
            failure = failure or error
            if len(loop.languages) == 1:
                raise failure from None
            loop = replace(loop, refused=(*loop.refused, grammar.language))
            continue
        if failure is not None:
            notice = f"{failure.message} (asked for in {loop.refused[0]}; held in {grammar.language} instead)"
            endpoint.notices.append(notice)
        return loop, relaxations, grammar


def _planning(policy: Policy) -> tuple[ToolSpec, ...]:
    return (plans.ANY,) if policy.strategy == "plan" else ()

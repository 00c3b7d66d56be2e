"""Agents as tools of other agents: a run inside a call of another run.

The inner run has its own tools, transcript and trace, and sees nothing but its question. What it may use
up is a share of what the outer run has left, and what it used counts there. It stops when nobody waits
for it any longer, and comes to its end when the outer run was asked to. However it ends, its status and
its answer are what the outer model reads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from localreact.budgets import SHORTEST_TURN
from localreact.errors import UsageError
from localreact.loop import Loop
from localreact.run import Run, Running, RunState
from localreact.tools import Call, Tool, current_call, tool
from localreact.tools.execution import Outer
from localreact.trace.events import RunEnded
from localreact.types import InnerRun, Observation, ToolExample

LONGEST = 500  # characters of a question: the model has to ask, not to go on


def within(loop: Loop, outer: Outer, share: float) -> Loop:
    """The loop with a share of what the outer run has left, and no more than its own budgets.

    Raises:
        UsageError: that is too little for a single turn.
    """
    budgets, permission = loop.budgets, loop.permission
    if outer.tokens is not None:
        tokens = min(budgets.max_tokens, int(share * outer.tokens))
        if tokens < SHORTEST_TURN:
            raise UsageError(f"only {tokens} tokens are left for it")
        budgets = replace(budgets, max_tokens=tokens)
    if outer.deadline is not None:
        seconds = share * max(1e-6, outer.deadline - time.monotonic())
        own = budgets.deadline_s
        budgets = replace(budgets, deadline_s=seconds if own is None else min(own, seconds))
    if outer.cost is not None:
        cost, most = share * max(0.0, outer.cost), permission.max_cost
        permission = replace(permission, max_cost=cost if most is None else min(most, cost))
    return replace(loop, budgets=budgets, permission=permission)


def as_tool(
    begin: Callable[[str, Call], tuple[Running, RunState]],
    spent: Callable[[RunState], float],
    name: str,
    description: str,
    *,
    share: float,
    timeout: float,
    cost: float,
    effects: bool,
    examples: Sequence[ToolExample],
) -> Tool:
    """The tool whose calls are runs that `begin` begins; `spent` tells what a run cost.

    Raises:
        UsageError: a share that is none.
    """
    if not 0 < share <= 1:
        raise UsageError(f"a share is a number above 0, up to 1, not {share}")

    @tool(name=name, description=description, timeout=timeout, effects=effects, cost=cost, examples=examples)
    def ask(question: Annotated[str, Field(min_length=1, max_length=LONGEST)]) -> Observation:
        """
        Args:
            question: What it is to find out, in full: it sees nothing else.
        """
        call = current_call()
        running, state = begin(question, call)
        ended: list[RunEnded] = []

        def so_far() -> InnerRun:
            usage = state.usage + state.inner
            trace = "" if running.trace is None else os.fspath(running.trace)
            status = ended[0].status if ended else "unfinished"
            return InnerRun(running.run_id, status, usage, spent(state), trace)

        call.outer.runs.append(so_far)
        for event in running:
            if call.outer.finishing():
                running.finish()
            if isinstance(event, RunEnded):
                ended.append(event)
        return told(running.outcome)

    return ask


def told(run: Run) -> Observation:
    """What a run comes to, for the model that asked. Only an answer counts as a result."""
    if run.answer is None:
        said = run.missing if run.missing is not None else run.reason
        return Observation("", f"{run.status}: {said}", ok=False)
    unsure = f"\n({run.status}: {run.reason})" if run.status != "finished" else ""
    return Observation("", run.answer + unsure)

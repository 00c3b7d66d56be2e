"""Plans: what is left to do, as a list of steps that the model writes in a turn of its own.

A run that plans begins with such a turn; nothing else is legal there. The model then works on the first
step as on any question, with thoughts, calls and observations. Once a call was made for a step, the model
may say anew what is left, and goes on with the first of that: so the list changes with what was found
out. An answer is legal when the step at hand is the last one, or nothing is left.

No plan is longer than the turns that are left can carry out, and a step that has used up its share of
them can only be followed by the next. A plan is the model's word: no evidence, nothing to cite. It takes a
turn and its tokens like anything else. Pure functions, as in `policy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from localreact.budgets import Budgets
from localreact.errors import UsageError
from localreact.protocols import Protocol
from localreact.run import Step
from localreact.types import ToolCall, ToolSpec, TurnSpec

PLAN = "plan"
MOST = 6  # steps
LONGEST = 160  # characters of a step
SHORTEST = 40  # with less room for each, there are fewer steps
LEAST_TURNS = 4  # a plan, a call, an answer, and the last turn, which no plan may count on


def turn(least: int = 1, most: int = MOST, longest: int = LONGEST) -> ToolSpec:
    """The turn that says what is left to do."""
    step = {"type": "string", "minLength": 1, "maxLength": longest}
    steps = {"type": "array", "items": step, "minItems": least, "maxItems": most}
    return ToolSpec(
        PLAN,
        "Say what is left to do, step by step; first of all, and again when a step is done.",
        {
            "type": "object",
            "properties": {"steps": steps},
            "required": ["steps"],
            "additionalProperties": False,
        },
    )


ANY = turn(least=0)
"""As the prompt and a parser have it."""


def check(protocol: Protocol, budgets: Budgets) -> None:
    """
    Raises:
        UsageError: there are too few turns for the shortest plan.
        GrammarError: the protocol has no place for a list.
    """
    if budgets.max_steps < LEAST_TURNS:
        raise UsageError(
            f"a plan needs at least {LEAST_TURNS} steps, not {budgets.max_steps}",
            "Give more (--max-steps, max_steps), or take the strategy react.",
        )
    protocol.grammar(TurnSpec((ANY,), answer=False), "lark")


def affordable(budgets: Budgets, made: int) -> int:
    """How many steps a plan may have that is made after so many turns. A step takes a call and a look at
    the plan, the last one a call and the answer, and the very last turn isn't counted on."""
    return max(0, min(MOST, (budgets.max_steps - made - 2) // 2))


def current(steps: Sequence[Step]) -> tuple[tuple[str, ...], Sequence[Step]] | None:
    """What is left to do, and what was done since that was said; None before there is a plan."""
    for at in range(len(steps) - 1, -1, -1):
        said = steps[at].turn
        if isinstance(said, ToolCall) and said.tool == PLAN and steps[at].observation is None:
            return tuple(said.arguments["steps"]), steps[at + 1 :]
    return None


def narrowed(spec: TurnSpec, steps: Sequence[Step], budgets: Budgets, characters: int) -> TurnSpec:
    """What of a turn is legal under the plan, and when the plan may be made or changed, in at most so many
    characters."""
    found, most = current(steps), affordable(budgets, len(steps))
    most = min(most, max(1, characters // SHORTEST))
    longest = max(1, min(LONGEST, characters // max(1, most)))
    if found is None:
        if not most:  # after many texts that were no turn
            return spec
        return replace(spec, tools=(turn(1, most, longest),), excluded=(), answer=False, insufficient=False)
    left, since = found
    if not left:
        return replace(spec, tools=())
    looked = any(step.observation is not None and step.observation.executed for step in since)
    again = (turn(0, most, longest),) if looked and most else ()
    if len(left) == 1 or not spec.tools or not most:
        return replace(spec, tools=(*spec.tools, *again))
    if again and 2 * len(left) > budgets.max_steps - len(steps) - 1:
        return replace(spec, tools=again, answer=False)
    return replace(spec, tools=(*spec.tools, *again), answer=False)


def objection(call: ToolCall, spec: TurnSpec) -> str:
    """Why a plan can't be taken; empty where it can. What no grammar held may be anything."""
    offered = next((tool for tool in spec.tools if tool.name == PLAN), None)
    if offered is None:
        return "there is nothing to plan now"
    bounds = offered.parameters["properties"]["steps"]
    steps, longest = call.arguments.get("steps"), bounds["items"]["maxLength"]
    if call.arguments.keys() != {"steps"} or not isinstance(steps, list):
        return "a plan is a list of steps, and nothing else"
    if not all(isinstance(step, str) and 0 < len(step) <= longest for step in steps):
        return f"each step of a plan is a text of at most {longest} characters"
    if not bounds["minItems"] <= len(steps) <= bounds["maxItems"]:
        return f"a plan has {bounds['minItems']} to {bounds['maxItems']} steps now, not {len(steps)}"
    return ""


def told(steps: Sequence[str]) -> str:
    """What the runtime says after a plan: the step that is to be worked on."""
    if not steps:
        return "Nothing is left to do. Answer the question."
    after = f"After that: {'; '.join(steps[1:])}" if steps[1:] else "After that, answer the question."
    return f"Do this now: {steps[0]}\n{after}"

"""From the state of a run to what its next turn may be: pure functions, no I/O."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Literal, get_args

from localreact import guards, paging, plans
from localreact.budgets import FINAL_TURNS, REASONING_TAGS, SHORTEST_TURN, Budgets
from localreact.checks import Check
from localreact.errors import AnswerError, UsageError
from localreact.grammar import quotes
from localreact.grammar.answers import AnswerType
from localreact.grammar.exclude import without
from localreact.grammar.schema import Relaxation
from localreact.guards import Guards, Judgement
from localreact.run import Ending, RunState
from localreact.types import Closing, Finish, JsonSchema, Status, ToolCall, ToolSpec, Turn, TurnSpec, Usage

CHARACTERS_PER_TOKEN = 2  # a careful figure: running text has 3 to 4, numbers have 1

QUOTE_FRAME = 30  # characters of a cited quote beside the quote itself
ROOM_PER_QUOTE = 150  # characters; with less, there are fewer quotes rather than shorter ones
INTERRUPTED = "not executed: the user asked for the answer now"

Strategy = Literal["react", "plan"]
"""One thought and one call after the other; or a plan first, whose steps are worked on so."""

MAX_RECHECKS = 2
"""Answers that go back to the model because a check isn't met; the next one is partial."""


@dataclass(frozen=True)
class Policy:
    """What holds for all turns of a run. `tools` are the tools as the grammar holds them.

    `tool_choice` is `auto`, `none` (no tool at all), `required` (a call before anything else) or the name
    of the tool that is called first. With the evidence gate, no answer is legal before a call succeeded.
    Where answers `cite`, none is legal before there is something to quote.

    Raises:
        UsageError: no such tool choice or strategy, citing or planning without tools.
    """

    tools: tuple[ToolSpec, ...] = ()
    evidence_gate: bool = True
    tool_choice: str = "auto"
    answer_type: AnswerType | None = None
    answer_schema: JsonSchema | None = None
    """The answer's schema as the grammar holds it."""

    cite: bool = False
    guards: Guards = Guards()  # noqa: RUF009  (frozen)
    checks: tuple[Check, ...] = ()
    """What an answer has to meet before it is accepted."""

    strategy: Strategy = "react"
    answer_relaxations: tuple[Relaxation, ...] = ()
    """What of the answer's type no grammar holds; the type checks it."""

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if self.tool_choice not in ("auto", "none", "required", *names):
            raise UsageError(
                f"no tool is named {self.tool_choice!r}",
                f"A tool choice is auto, none, required, or a tool's name ({', '.join(names)}).",
            )
        if self.tool_choice == "required" and not names:
            raise UsageError("a tool call is required, and there is no tool", "Give a tool.")
        if self.cite and (not names or self.tool_choice == "none"):
            raise UsageError("without tools there is nothing to cite", "Give tools, or leave citing off.")
        if self.strategy not in get_args(Strategy):
            raise UsageError(
                f"there is no strategy {self.strategy!r}", f"Strategies: {', '.join(get_args(Strategy))}."
            )
        if self.strategy == "plan" and (not names or self.tool_choice == "none"):
            raise UsageError("without tools there is nothing to plan", "Give tools, or don't plan.")
        if self.strategy == "plan" and plans.PLAN in names:
            raise UsageError("a tool can't be named 'plan' where runs have a plan", "Rename it.")


@dataclass(frozen=True)
class Plan:
    """`closing` says which limit closed the tools, if one did, and `reason` in a sentence: then the turn
    has to be the last."""

    spec: TurnSpec
    max_tokens: int
    closing: Closing | None = None
    reason: str = ""


@dataclass(frozen=True)
class Room:
    """Tokens of context: what the prompt takes, and what there is."""

    needed: int
    size: int

    @property
    def left(self) -> int:
        return self.size - self.needed

    def kept_for_last_turn(self, budgets: Budgets) -> int:
        return min(budgets.kept_for_last_turn, self.size // 4)


def is_late(state: RunState, budgets: Budgets) -> bool:
    """Whether less time is left than the longest turn took."""
    if budgets.deadline_s is None or not state.steps:
        return False
    left = state.started + budgets.deadline_s - time.monotonic()
    return left < max(step.timings.prompt_s + step.timings.generate_s for step in state.steps)


def next_turn(state: RunState, budgets: Budgets, policy: Policy, room: Room) -> Plan | Ending:
    """What the next turn may be, or the ending where nothing is left to go on with."""
    left = budgets.max_tokens - state.generated
    if state.refused_turns >= budgets.max_protocol_errors:
        return Ending("protocol_loop", f"{state.refused_turns} replies were no turn of the protocol")
    if len(state.steps) >= budgets.max_steps:
        return Ending("max_steps", f"no answer within {budgets.max_steps} steps{_cut_off(state)}")
    if left < SHORTEST_TURN:
        return Ending("token_budget", f"no answer within {budgets.max_tokens} tokens{_cut_off(state)}")
    if budgets.deadline_s is not None and time.monotonic() >= state.started + budgets.deadline_s:
        return Ending("deadline", f"no answer within {budgets.deadline_s:g} seconds")
    if room.left < SHORTEST_TURN:
        return Ending(
            "context_overflow",
            f"the prompt needs {room.needed} tokens and a turn {SHORTEST_TURN} more; "
            f"the context holds {room.size}. Ask for a larger context (--ctx), or for fewer tools.",
        )
    if state.closing and sum(step.closing is not None for step in state.steps) >= FINAL_TURNS:
        status: Status = "cancelled" if state.closing == "interrupted" else state.closing
        return Ending(status, f"no answer in {FINAL_TURNS} turns after the tools were closed")
    has_tools = bool(policy.tools) and policy.tool_choice != "none"
    judged = guards.judge(state.steps, policy.guards)
    closing, reason = _closing(state, budgets, left, has_tools, room, judged)
    reasoning = _reasoning(budgets, room)
    in_context = room.left - (reasoning + REASONING_TAGS if reasoning else 0)
    tokens = min(left if closing or not has_tools else left - budgets.kept_for_last_turn, in_context)
    if budgets.max_turn_tokens is not None:
        tokens = min(tokens, budgets.max_turn_tokens)
    spec = _legal(state, policy, has_tools, closing, judged)
    if policy.strategy == "plan" and not closing:
        spec = plans.narrowed(spec, state.steps, budgets, CHARACTERS_PER_TOKEN * tokens // 2)
    spec = within(spec, tokens)
    return Plan(replace(spec, reasoning=reasoning), tokens, closing, reason)


def _legal(
    state: RunState, policy: Policy, has_tools: bool, closing: Closing | None, judged: Judgement
) -> TurnSpec:
    """The turn that may be next, before its strings are bounded.

    An answer from memory is legal only where there is no gate; that something is missing, only after
    having looked. Once a call was made, a tool choice is fulfilled.
    """
    looked = any(each.executed for each in state.observations)
    sources = state.sources if policy.cite else ()
    answer = bool(sources) if policy.cite else state.has_evidence or not (policy.evidence_gate and has_tools)
    spec = TurnSpec(
        answer=answer,
        sources=sources,
        insufficient=looked or (closing is not None and not answer),
        answer_schema=policy.answer_schema,
    )
    if closing or not has_tools:
        return spec
    tools = policy.tools
    if policy.tool_choice != "auto" and not looked:
        spec = replace(spec, answer=False)
        tools = tuple(tool for tool in tools if policy.tool_choice in ("required", tool.name))
    if (more := paging.spec(state)) and more.name not in [tool.name for tool in tools]:
        tools = (*tools, more)
    alive = (
        without(tool, [arguments for name, arguments in judged.calls if name == tool.name], spec.argument_max)
        for tool in tools
        if tool.name not in judged.tools
    )
    return replace(spec, tools=tuple(piece for pieces in alive for piece in pieces), excluded=judged.calls)


def _cut_off(state: RunState) -> str:
    cut = state.steps and state.steps[-1].problem == "length"
    return "; the tokens ran out inside the last turn" if cut else ""


def _reasoning(budgets: Budgets, room: Room) -> int:
    """Tokens for reasoning, as far as the context then still holds a last turn."""
    spare = room.left - room.kept_for_last_turn(budgets) - REASONING_TAGS
    return max(0, min(budgets.reasoning_tokens, spare))


def within(spec: TurnSpec, tokens: int) -> TurnSpec:
    """The spec with bounds that such a number of tokens can reach, so that a string is closed by its
    bound rather than cut by the tokens."""
    characters = CHARACTERS_PER_TOKEN * tokens
    thought_max = max(spec.thought_min + 20, min(spec.thought_max, characters // 4))
    if spec.sources:  # a quarter for quotes
        spec = _quotes_within(spec, characters // 4)
        characters -= spec.quotes_max * (spec.quote_max + QUOTE_FRAME)
    answer_max = max(20, min(spec.answer_max, characters - thought_max))
    return replace(spec, thought_max=thought_max, answer_max=answer_max)


def _quotes_within(spec: TurnSpec, characters: int) -> TurnSpec:
    count = max(1, min(spec.quotes_max, characters // ROOM_PER_QUOTE))
    longest = min(spec.quote_max, characters // count - QUOTE_FRAME)
    return replace(spec, quotes_max=count, quote_max=max(quotes.QUOTE_MIN, longest))


def _closing(
    state: RunState, budgets: Budgets, left: int, has_tools: bool, room: Room, judged: Judgement
) -> tuple[Closing | None, str]:
    """The limit that closes the tools, if one does, and a sentence on it."""
    if state.closing:
        return state.closing, ""
    if state.refused_turns and state.refused_turns >= budgets.max_protocol_errors - 1:
        return "protocol_loop", f"{state.refused_turns} replies were no turn"
    if not has_tools:
        return None, ""
    if state.interrupted:
        return "interrupted", "the user asked for the answer now"
    if len(state.steps) == budgets.max_steps - 1:
        return "max_steps", f"the last of {budgets.max_steps} steps is for the answer"
    if left < budgets.kept_for_last_turn + SHORTEST_TURN:
        return "token_budget", f"the last {left} of {budgets.max_tokens} tokens are for the answer"
    if state.late:
        return "deadline", f"the last of {budgets.deadline_s or 0:g} seconds are for the answer"
    if state.steps and room.left < room.kept_for_last_turn(budgets) + SHORTEST_TURN:
        return "context_overflow", f"the last {room.left} of {room.size} tokens of context are for the answer"
    if state.failed_calls >= budgets.max_tool_errors:
        return "stuck", f"{state.failed_calls} calls in a row failed"
    return ("stuck", judged.stuck) if judged.stuck else (None, "")


def objection(turn: Turn, plan: Plan, policy: Policy) -> str:
    """Why a turn can't be accepted although it is one; empty where it can.

    A grammar admits no barred turn, so most of this only happens on endpoints that enforce none.
    """
    if isinstance(turn, ToolCall):
        if (turn.tool, turn.arguments) in plan.spec.excluded:
            return "not executed: this very call was made before; change it, or finish"
        names = list(dict.fromkeys(tool.name for tool in plan.spec.tools))
        if is_plan(turn, policy):
            return plans.objection(turn, plan.spec)
        if turn.tool not in names:
            known = any(turn.tool == tool.name for tool in policy.tools)
            problem = f"{turn.tool} can't be called now" if known else f"there is no tool {turn.tool!r}"
            return f"{problem}; the tools are: {', '.join(names) or 'none'}"
        if turn.truncated:
            cut = f"{turn.truncated[0]} was cut at {plan.spec.argument_max} characters"
            return f"not executed: {cut}; shorten it"
    elif turn.answer is not None and not plan.spec.answer:
        if any(tool.name == plans.PLAN for tool in plan.spec.tools) and policy.strategy == "plan":
            return "there is something left to do first: say with plan what it is"
        return "an answer needs evidence: call a tool first"
    elif turn.answer is not None and (problem := quotes.objection(turn.evidence, plan.spec)):
        return problem
    elif turn.missing is not None and not plan.spec.insufficient:
        return "call a tool before saying that something is missing"
    elif turn.answer is not None and policy.answer_type is not None:
        try:
            policy.answer_type.read(turn.value)
        except AnswerError as error:
            return error.message
    return ""


def is_plan(turn: Turn, policy: Policy) -> bool:
    return isinstance(turn, ToolCall) and turn.tool == plans.PLAN and policy.strategy == "plan"


def ending_of(turn: Finish, plan: Plan, policy: Policy) -> Ending:
    """An answer that a limit forced, or that its bound cut off, is partial."""
    if turn.missing is not None:
        return Ending("insufficient", plan.closing or "", missing=turn.missing)
    value = turn.answer if policy.answer_type is None else policy.answer_type.read(turn.value)
    cut = f"the answer was cut at {plan.spec.answer_max} characters" if turn.truncated else ""
    status: Status = "partial" if cut or plan.closing else "finished"
    cited = tuple(dict.fromkeys(turn.evidence))
    return Ending(status, cut or plan.closing or "", answer=turn.answer, value=value, evidence=cited)


def is_rechecked(state: RunState, budgets: Budgets, plan: Plan, usage: Usage) -> bool:
    """Whether an answer that doesn't meet a check goes back to the model; otherwise it is taken, as partial:
    after a few times, or where nothing is left to better it with. `usage` is this turn's."""
    left = budgets.max_tokens - state.generated - usage.generated
    return (
        not plan.closing
        and sum(step.unmet for step in state.steps) < MAX_RECHECKS
        and len(state.steps) + 1 < budgets.max_steps
        and left >= budgets.kept_for_last_turn
    )

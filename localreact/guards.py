"""Sees that a run goes in circles, and how far to step in: pure functions of its steps.

Three kinds of circle: the very same call with the same result, calls that differ while their results
say nothing new, and a few calls taking turns. Three measures, one after the other: the model is told,
the call (or the tool) leaves the language of the next turn, all tools close. A poll whose result changes
is no circle, and neither is a short result that only repeats a value (3 of these left, 3 of those).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from localreact.errors import UsageError
from localreact.run import Step
from localreact.types import Observation, Timings, ToolCall, Turn, Usage
from localreact.words import words

COMPARED = 4000  # characters of a result: about what a model is shown of it
SHORT = 8  # words; a shorter result is a value, and which call gave it is what it says
LONGEST_CYCLE = 4  # calls that take turns

_NOTHING = re.compile(
    r"\W*(?:(?:not found|(?:no|nothing|none|0|zero)\s+\w)|没有|未找到|找不到|无结果|なし|見つかり|없)"
)
_EMPTY = {"", "[]", "{}", '""'}


@dataclass(frozen=True)
class Guards:
    """When a run counts as going in circles.

    A call that gave the same result `repeats` times, with nothing new from others between, leaves the
    language; so does a tool whose last `rephrased` results, of whatever arguments, added nothing. After
    `stuck` turns in a row with nothing new the tools close. A result adds something if more than
    `novelty` of its words (without those of the call itself) stand in no earlier result. Calls of the
    tools in `exempt` never count.

    Raises:
        UsageError: a threshold that makes no sense.
    """

    repeats: int = 2
    rephrased: int = 3
    stuck: int = 4
    novelty: float = 0.1
    exempt: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.repeats < 2:
            raise UsageError(f"a call repeats itself the second time it is made, not with {self.repeats}")
        if self.rephrased < 1 or self.stuck < 1:
            raise UsageError("the guards' thresholds must be at least 1")
        if not 0 <= self.novelty < 1:
            raise UsageError(f"novelty is a share from 0 to below 1, not {self.novelty}")


@dataclass(frozen=True, slots=True)
class Act:
    """One measure. `step` is the turn that gave rise to it."""

    step: int
    guard: Literal["repeat", "rephrase", "cycle"]
    action: Literal["noted", "excluded"]
    detail: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What holds for the next turn. `stuck` says why the tools close, if they do."""

    acts: tuple[Act, ...] = ()
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    tools: frozenset[str] = frozenset()
    stuck: str = ""


def judge(steps: Sequence[Step], guards: Guards) -> Judgement:
    """What to do about the steps of a run so far."""
    history = _History(guards)
    for step in steps:
        history.add(step)
    stuck = f"{history.idle} turns in a row brought nothing new" if history.idle >= guards.stuck else ""
    dead = tuple((made.call.tool, made.call.arguments) for made in history.made if made.dead)
    tools = frozenset(name for name, times in history.fruitless.items() if times >= guards.rephrased)
    return Judgement(tuple(history.acts), dead + _unknown_calls(steps), tools, stuck)


def acts_on(steps: Sequence[Step], turn: Turn, observation: Observation, guards: Guards) -> tuple[Act, ...]:
    """The measures that a new observation gives rise to."""
    step = Step(len(steps) + 1, turn, observation, Usage(), Timings())
    return tuple(act for act in judge((*steps, step), guards).acts if act.step == step.number)


def note(acts: Sequence[Act]) -> str:
    """What the model is told, beside the result, of the measures of one step."""
    return "; ".join(act.detail for act in acts if act.action == "noted")


@dataclass(eq=False)
class _Made:
    """A call that was made: its last result, the step that first gave it, and how often in a row."""

    call: ToolCall
    result: str
    since: int
    times: int = 1
    dead: bool = False
    results: set[str] = field(default_factory=set)


@dataclass
class _History:
    guards: Guards
    made: list[_Made] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    """The words of all results."""
    fruitless: dict[str, int] = field(default_factory=dict)
    """By tool: results in a row that added nothing."""
    idle: int = 0
    """Turns in a row that brought nothing new."""
    pairs: list[tuple[_Made, str]] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)

    def add(self, step: Step) -> None:
        seen = step.observation
        if seen is None:
            return
        if not seen.executed or not isinstance(step.turn, ToolCall):
            self.idle += 1
        elif step.turn.tool not in self.guards.exempt:
            self._add_result(step.number, step.turn, seen)

    def _add_result(self, number: int, call: ToolCall, seen: Observation) -> None:
        made = next(
            (m for m in self.made if (m.call.tool, m.call.arguments) == (call.tool, call.arguments)), None
        )
        news = _news(call, seen, self.seen, self.guards.novelty)
        self.seen |= _vocabulary(seen.content)
        if made is None:
            made = _Made(call, seen.content, number)
            self.made.append(made)
            self._judge_result(number, made, news if seen.ok or news == "none" else "some")
        elif seen.content == made.result:
            made.times += 1
            self._repeated(number, made)
        else:  # a poll
            fresh = seen.content not in made.results
            made.result, made.since, made.times, made.dead = seen.content, number, 1, False
            self._judge_result(number, made, "new" if fresh and seen.ok else "some")
        made.results.add(seen.content)
        self.pairs.append((made, seen.content))
        self._find_cycle(number)

    def _judge_result(self, number: int, made: _Made, news: Literal["new", "some", "none"]) -> None:
        tool = made.call.tool
        if news == "new":
            self.idle = 0
            self.fruitless.clear()
            for other in self.made:  # with something new, an old call may give another result
                if other is not made:
                    other.times, other.dead = 1, False
        elif news == "none":
            self.idle += 1
            self.fruitless[tool] = times = self.fruitless.get(tool, 0) + 1
            self._act(number, "rephrase", "noted", "this says nothing that earlier results didn't say")
            if times == self.guards.rephrased:
                self._act(number, "rephrase", "excluded", tool)

    def _repeated(self, number: int, made: _Made) -> None:
        self.idle += 1
        self._act(number, "repeat", "noted", f"the same call gave the same result in step {made.since}")
        if made.times >= self.guards.repeats:
            self._exclude(number, "repeat", made)

    def _find_cycle(self, number: int) -> None:
        """A few calls that take turns, with the same results each time round."""
        for length in range(2, LONGEST_CYCLE + 1):
            last = self.pairs[-length:]
            if len(self.pairs) >= 2 * length and last == self.pairs[-2 * length : -length]:
                calls = list({id(made): made for made, _ in last}.values())
                if len(calls) > 1:
                    for made in calls:
                        self._exclude(number, "cycle", made)

    def _exclude(self, number: int, guard: Literal["repeat", "cycle"], made: _Made) -> None:
        if not made.dead:
            made.dead = True
            self._act(number, guard, "excluded", f"{made.call.tool} {dict(made.call.arguments)}")

    def _act(
        self,
        number: int,
        guard: Literal["repeat", "rephrase", "cycle"],
        action: Literal["noted", "excluded"],
        detail: str,
    ) -> None:
        self.acts.append(Act(number, guard, action, detail))


def _news(call: ToolCall, seen: Observation, known: set[str], least: float) -> Literal["new", "some", "none"]:
    """Whether a result adds something to what is known, or nothing; `some` is a value that was given
    before, of something else."""
    said = _vocabulary(seen.content) - _vocabulary(" ".join(map(str, call.arguments.values())))
    new = said - known
    if new and len(new) > least * len(said):
        return "new"
    if seen.ok and len(said) < SHORT and not _says_nothing(seen.content):
        return "some"
    return "none"


def _says_nothing(text: str) -> bool:
    text = unicodedata.normalize("NFKC", text).strip().casefold()
    return text in _EMPTY or _NOTHING.match(text) is not None


def _vocabulary(text: str) -> frozenset[str]:
    return _words_in(text[:COMPARED])


@lru_cache(maxsize=512)
def _words_in(text: str) -> frozenset[str]:
    return frozenset(words(unicodedata.normalize("NFKC", text)))


def _unknown_calls(steps: Sequence[Step]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Calls that may have taken effect: making them again might do it twice."""
    return tuple(
        (step.turn.tool, step.turn.arguments)
        for step in steps
        if isinstance(step.turn, ToolCall) and step.observation is not None and step.observation.unknown
    )

"""Older steps in short: what becomes of them where the context can't hold them whole any more.

The last few steps stay as they are. Those before become lines in the question's message: which step,
what was thought, which call, how the result began. Lines once written stay as they are too, and steps are
taken in many at a time, so that most prompts still begin with the one before. Where the lines
themselves are too many, the oldest are left out.

Instead of lines there may be a summary, which the model writes in a turn that can be nothing but an
answer. It is the model's word: nothing in it can be cited. It takes a turn's time, and costs its tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from localreact import plans
from localreact.context import Transcript
from localreact.errors import ProtocolError
from localreact.protocols import Protocol
from localreact.protocols.base import read_first
from localreact.run import Digest, Step
from localreact.types import Completion, Finish, Prompt, Segment, ToolCall, TurnSpec

HEAD = "\n\nSteps so far, in short:"
SUMMARY = "\n\nWhat you noted of the steps so far: "
ASK = "Before you go on: what did the steps so far find out that helps to answer the question?"
SHARE = 12
"""The lines take at most this part of the context, one in …"""

LINE = 160  # characters of a line in a small context, about
LONG_LINE = 400  # in one of at least LARGE tokens
LARGE = 8192
SUMMED_UP = 600  # characters of a summary at most; in a small context its share
CHARACTERS_PER_TOKEN = 3
THOUGHT = 60  # characters


def segments(digest: Digest) -> list[Segment]:
    """The lines as they stand in the prompt, each a segment: one that was there before is the same after."""
    told = [Segment(SUMMARY, True), Segment(digest.summary)] if digest.summary else []
    if digest.told > digest.summed_up:
        told.append(Segment(HEAD, True))
    if digest.left_out > digest.summed_up:
        told.append(Segment(f"\n- steps {digest.summed_up + 1} to {digest.left_out}: left out", True))
    plan = [Segment("\n\n", True), Segment(digest.plan)] if digest.plan else []
    return told + [Segment(line) for line in digest.lines] + plan


def digest(before: Digest, steps: Sequence[Step], left_out: int, told: int, size: int) -> Digest:
    """The steps after `left_out` up to `told` in short, in a context of `size` tokens, besides what
    `before` has of a summary."""
    width = LONG_LINE if size >= LARGE else LINE
    made = {step.number: _line(step, width) for step in steps[left_out:told]}
    shown = {number: text for number, (_, text) in made.items()}
    lines = tuple(line for line, _ in made.values())
    return Digest(left_out, told, lines, shown, before.summary, before.summed_up, _plan(steps[:told]))


def longer(
    before: Digest, steps: Sequence[Step], told: int, size: int, count: Callable[[str], int]
) -> Digest:
    """`before` with the steps up to `told` in short too; `count` counts the tokens of a text."""
    left_out = before.left_out
    now = digest(before, steps, left_out, told, size)
    while now.lines and count("".join(now.lines)) > size // SHARE:
        left_out += 1
        now = digest(before, steps, left_out, told, size)
    return now


# --- a summary by the model


def question(transcript: Transcript) -> Prompt:
    """The conversation so far, and after it the question for a summary."""
    asked = transcript.copy()
    asked.user([Segment(ASK, True)])
    return replace(asked.prompt, shared=transcript.prompt.shared)


def turn(size: int) -> TurnSpec:
    """The turn that may answer that, in a context of `size` tokens."""
    longest = min(SUMMED_UP, CHARACTERS_PER_TOKEN * size // SHARE)
    return TurnSpec(answer=True, thought_max=THOUGHT, answer_max=longest)


def text_of(completion: Completion, protocol: Protocol) -> str:
    """The summary that a turn is; empty where it is none, or not a whole one."""
    if completion.stop not in ("complete", "eog"):
        return ""
    try:
        said, _ = read_first(protocol, completion.text)
    except ProtocolError:
        return ""
    return said.answer or "" if isinstance(said, Finish) else ""


def summed_up(summary: str, steps: Sequence[Step], told: int) -> Digest:
    """The steps up to `told`, in a summary."""
    return Digest(told, told, summary=summary, summed_up=told, plan=_plan(steps[:told]))


def _line(step: Step, width: int) -> tuple[str, str]:
    """A step as one line, and what of its result stands in it."""
    if step.turn is None:
        return f"\n- step {step.number}: no turn", ""
    parts = [f"\n- step {step.number}: {_short(step.turn.thought, width // 4)}"]
    if isinstance(step.turn, ToolCall):
        arguments = json.dumps(dict(step.turn.arguments), ensure_ascii=False)
        parts.append(f" {step.turn.tool} {_short(arguments, width // 4)}")
    shown = ""
    if step.observation is not None:
        seen = step.observation.content if step.shown is None else step.shown
        shown = _short(seen, width // 2)
        parts.append(f" → {'' if step.observation.ok else 'error: '}{shown}")
    return "".join(parts), shown


def _plan(steps: Sequence[Step]) -> str:
    """What the model was told to do when it last planned in these steps."""
    found = plans.current(steps)
    return plans.told(found[0]) if found else ""


def _short(text: str, characters: int) -> str:
    """The beginning of a text on one line, with … where more would come."""
    text = " ".join(text[: 4 * characters].split())
    return text if len(text) <= characters else text[: characters - 1] + "…"

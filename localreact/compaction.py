"""Older steps in short: what becomes of them where the context can't hold them whole any more.

The last few steps stay as they are. Those before become lines in the question's message: which step,
what was thought, which call, how the result began. Lines once written stay as they are too, and steps are
taken in many at a time, so that most prompts still begin with the one before. Where the lines
themselves are too many, the oldest are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from localreact.run import Digest, Step
from localreact.types import Segment, ToolCall

HEAD = "\n\nSteps so far, in short:"
SHARE = 12
"""The lines take at most this part of the context, one in …"""

LINE = 160  # characters of a line in a small context, about
LONG_LINE = 400  # in one of at least LARGE tokens
LARGE = 8192


def segments(digest: Digest) -> list[Segment]:
    """The lines as they stand in the prompt, each a segment: one that was there before is the same after."""
    head = [Segment(HEAD, True)] if digest.told else []
    if digest.left_out:
        head.append(Segment(f"\n- steps 1 to {digest.left_out}: left out", True))
    return head + [Segment(line) for line in digest.lines]


def digest(steps: Sequence[Step], left_out: int, told: int, size: int) -> Digest:
    """The steps after `left_out` up to `told` in short, in a context of `size` tokens."""
    width = LONG_LINE if size >= LARGE else LINE
    made = {step.number: _line(step, width) for step in steps[left_out:told]}
    shown = {number: text for number, (_, text) in made.items()}
    return Digest(left_out, told, tuple(line for line, _ in made.values()), shown)


def longer(
    before: Digest, steps: Sequence[Step], told: int, size: int, count: Callable[[str], int]
) -> Digest:
    """`before` with the steps up to `told` in short too; `count` counts the tokens of a text."""
    left_out = before.left_out
    now = digest(steps, left_out, told, size)
    while now.lines and count("".join(now.lines)) > size // SHARE:
        left_out += 1
        now = digest(steps, left_out, told, size)
    return now


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


def _short(text: str, characters: int) -> str:
    """The beginning of a text on one line, with … where more would come."""
    text = " ".join(text[: 4 * characters].split())
    return text if len(text) <= characters else text[: characters - 1] + "…"

"""Where two events tell different stories. What differs by nature (ids, times) isn't looked at."""

from __future__ import annotations

import json
from typing import Any

from localreact.trace.events import (
    Event,
    Planned,
    RunEnded,
    StepStarted,
    ToolEnded,
    ToolStarted,
    TurnCompleted,
    TurnRead,
    TurnRefused,
)

SHOWN = 300  # characters of a value in a message


def difference(recorded: Event, now: Event, prompts: bool = True, limits: bool = True) -> str:
    """What differs, for a person; empty where nothing does.

    `prompts`: what the model was shown has to be the same; `limits`: what each turn might have been, too.
    """
    if type(recorded) is not type(now):
        return f"recorded: {told(recorded)}; now: {told(now)}"
    before, after = (_story(event, prompts, limits) for event in (recorded, now))
    for key, value in before.items():
        if value != after.get(key):
            return f"{key}: {_differing(value, after.get(key))}"
    return ""


def _story(event: Event, prompts: bool, limits: bool) -> dict[str, Any]:
    story: dict[str, Any] = {}
    match event:
        case StepStarted():
            if prompts:
                story["prompt"] = "".join(segment.text for segment in event.prompt)
            if limits:
                story |= {
                    "tools": event.tools,
                    "answer admitted": event.answer,
                    "insufficient admitted": event.insufficient,
                    "closing": event.closing,
                }
        case TurnCompleted(completion=completion):
            story |= {"text": completion.text, "stop": completion.stop}
        case TurnRead(turn=turn):
            story |= {"turn": turn}
        case TurnRefused(problem=problem):
            story |= {"problem": problem}
        case ToolStarted():
            story |= {"tool": event.tool, "arguments": dict(event.arguments)}
        case ToolEnded(observation=observation):
            story |= {
                "tool": observation.tool,
                "observation": observation.content,
                "ok": observation.ok,
                "executed": observation.executed,
            }
            if prompts and event.shown is not None:  # a run that ended here may have shown it to nobody
                story["observation as shown"] = event.shown
        case Planned(steps=steps):
            story |= {"plan": steps}
        case RunEnded():
            story |= {
                "status": event.status,
                "answer": event.answer,
                "missing": event.missing,
                "reason": event.reason,
            }
    return story


def told(event: Event) -> str:
    """An event in a few words."""
    match event:
        case StepStarted():
            return f"step {event.step} begins"
        case TurnRefused(problem=problem):
            return f"a text that is no turn ({problem})"
        case ToolStarted():
            return _short(f"{event.tool}({json.dumps(dict(event.arguments), ensure_ascii=False)}) is called")
        case ToolEnded(observation=observation):
            return _short(f"{observation.tool} gave {observation.content!r}")
        case Planned(steps=steps):
            return _short(f"the plan is {'; '.join(steps) or 'done'}")
        case RunEnded(status=status, reason=reason):
            return _short(f"the run ends as {status}{f' ({reason})' * bool(reason)}")
    return type(event).__name__


def _differing(before: Any, after: Any) -> str:
    """Both values; of long texts the place where they part."""
    if isinstance(before, str) and isinstance(after, str):
        at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
        start = max(0, (min(len(before), len(after)) if at is None else at) - 40)
        if start:
            return f"recorded: …{_short(repr(before[start:]))}; now: …{_short(repr(after[start:]))}"
    return f"recorded: {_short(repr(before))}; now: {_short(repr(after))}"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + " …"

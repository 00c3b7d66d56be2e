"""A run on a terminal: everything goes to stderr while it happens, the answer alone to stdout."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.status import Status

from localreact.endpoints.base import IN_PROCESS
from localreact.run import Run
from localreact.trace.events import (
    Compacted,
    Event,
    GuardActed,
    Planned,
    ProtocolChanged,
    RunEnded,
    RunStarted,
    StepStarted,
    TextDelta,
    ToolEnded,
    TurnRead,
    TurnRefused,
)
from localreact.types import Finish, InnerRun, Timings, ToolCall, Turn, Usage

STYLES = {
    "reasoning": "dim",
    "evidence": "green",
    "thought": "cyan",
    "action": "yellow",
    "observation": "green",
    "missing": "magenta",
    "guard": "magenta",
}
LABELS = {"noted": "", "excluded": "no more calls of ", "closed": "the tools are closed: "}
SHOWN_OBSERVATION = 1000  # characters; the trace has it all

# What a terminal would obey: escape sequences in tool output or in an answer must not move cursors.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text with control characters (and those that reorder text) replaced by U+FFFD."""
    return _CONTROL.sub("\ufffd", text)


class TerminalView:
    """Feed it events. `quiet` leaves the answer only; `answer_out` None leaves that out too."""

    def __init__(self, answer_out: TextIO | None, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True, quiet=quiet)
        self._out = answer_out
        self._open = ""  # the field that is being written on the current line
        self._waiting: Status | None = None
        self._answer_written = False
        self._stream_answers = False
        self._checked = False  # a check may turn an answer down
        self._level = ""

    def show(self, event: Event) -> None:
        match event:
            case RunStarted(enforced=enforced, level=level, settings=settings):
                self._checked = bool(settings.get("checks"))
                self._stream_answers = bool(enforced) and not self._checked
                self._level = level
            case StepStarted():
                self._wait()
            case TextDelta(field="answer", text=text):
                self._begin("answer", "")
                if self._stream_answers:  # otherwise it may still be refused
                    self._write_answer(text)
            case TextDelta(field="tool", text=text):
                self._begin("action", "Action: ")
                self._print(text + " ", "action")
            case TextDelta(field="arguments", text=text):
                self._print(text, "action")
            case TextDelta(field="missing", text=text):
                self._begin("missing", "Missing: ")
                self._print(text, "missing")
            case TextDelta(field="reasoning", text=text):
                self._begin("reasoning", "Reasoning: ")
                self._print(text, "reasoning")
            case TextDelta(field="thought", text=text):
                self._begin("thought", "Thought: ")
                self._print(text, "thought")
            case TurnRead(turn=turn) if self._open not in ("action", "answer", "missing"):
                self._whole(turn)  # of a server's own tool calling there are no deltas
            case TurnRefused(problem=problem):
                if self._answer_written and self._out:
                    self._out.write("\n")
                self._answer_written = False
                self._begin("", "")
                self._print(f"Not a turn: {problem}\n", "observation")
            case ToolEnded(observation=observation, shown=shown):
                self._begin("observation", "Observation: ")
                text = shown if shown is not None else observation.content
                cut = " …" if len(text) > SHOWN_OBSERVATION else ""
                self._print(text[:SHOWN_OBSERVATION] + cut, "observation")
                for run in observation.inner:
                    self._print(f" [{inner(run)}]", "observation")
            case ProtocolChanged(protocol=protocol, enforced=enforced, level=level, reason=reason):
                self._stream_answers = bool(enforced) and not self._checked
                self._level = level
                self._begin("", "")
                self._print(f"On with {protocol}: the server {reason}\n", "observation")
            case GuardActed(guard=guard, action=action, detail=detail):
                self._begin("", "")  # what was refused has been shown as the observation
                if action != "refused":
                    self._print(f"Guard ({guard}): {LABELS[action]}{detail}\n", "guard")
            case Planned(steps=steps):
                self._begin("observation", "Plan: ")
                after = f" (then: {'; '.join(steps[1:])})" if steps[1:] else ""
                self._print(f"{steps[0]}{after}" if steps else "nothing is left to do", "observation")
            case Compacted(told=told, before=before, after=after):
                self._begin("", "")
                how = "summed up" if event.summary and event.left_out == told else "in short"
                self._print(f"Context: steps 1 to {told} {how}, {before} tokens now {after}\n", "guard")
            case RunEnded():
                self._begin("", "")
                if event.answer is not None and not self._answer_written:
                    self._write_answer(event.answer)
                if self._answer_written and self._out:
                    self._out.write("\n")
                    self._out.flush()
                for each in event.evidence:
                    self._print(f"Evidence: {' '.join(each.quote.split())} [step {each.step}]\n", "evidence")
                self._print(
                    summary(event, self._level) + "\n",
                    None,
                    style="bold" if event.status == "finished" else "bold red",
                )

    def _whole(self, turn: Turn) -> None:
        if turn.thought:
            self._begin("thought", "Thought: ")
            self._print(turn.thought, "thought")
        if isinstance(turn, ToolCall):
            self._begin("action", "Action: ")
            self._print(f"{turn.tool} {json.dumps(turn.arguments, ensure_ascii=False)}", "action")
        elif turn.missing is not None:
            self._begin("missing", "Missing: ")
            self._print(turn.missing, "missing")

    def close(self) -> None:
        """Take down what is still on show. Safe to call at any time."""
        if self._waiting:
            self._waiting.stop()
            self._waiting = None

    def _wait(self) -> None:
        self._begin("", "")
        if self._console.is_terminal and not self._console.quiet:
            self._waiting = self._console.status("reading")
            self._waiting.start()

    def _begin(self, field: str, label: str) -> None:
        """Open a new line for a field, unless it is already open."""
        self.close()
        if field and field == self._open:
            return
        if self._open and self._open != "answer":
            self._console.print()
        self._open = field
        if label:
            self._print(label, field, bold=True)

    def _print(self, text: str, field: str | None, *, bold: bool = False, style: str = "") -> None:
        style = style or STYLES.get(field or "", "")
        self._console.print(
            printable(text), end="", style=f"bold {style}" if bold else style, markup=False, highlight=False
        )

    def _write_answer(self, text: str) -> None:
        self._answer_written = True
        if self._out:
            self._out.write(printable(text) if self._out.isatty() else text)
            self._out.flush()


def inner(run: InnerRun) -> str:
    """A run that a call made, in a few words."""
    return f"run {run.run_id}, {run.status}, {run.usage.generated} tokens"


def summary(ended: RunEnded, level: str = "") -> str:
    """One line: how the run ended and what it took, and what held its turns where that wasn't we."""
    usage, timings = ended.usage, ended.timings
    parts = [
        ended.status,
        f"{ended.steps} step{'s' * (ended.steps != 1)}"
        + (f" in {ended.round_trips} replies" if 0 < ended.round_trips < ended.steps else ""),
        f"{usage.generated} tokens ({usage.forced} forced)",
    ]
    if ended.inner.generated:
        parts.append(f"{ended.inner.generated} in other agents' runs")
    if usage.reasoning:
        parts.append(f"{usage.reasoning} of reasoning")
    if (rate := _rate(usage, timings)) is not None:
        parts.append(f"{rate:.0f} tokens/s")
    parts.append(f"{ended.seconds:.1f} s")
    if level and level != IN_PROCESS:
        parts.append(level)
    line = " · ".join(parts)
    return f"{line}\n{ended.reason}" if ended.reason and ended.status != "finished" else line


def _rate(usage: Usage, timings: Timings) -> float | None:
    """Tokens per second, reasoning included."""
    tokens = usage.generated + usage.reasoning
    return tokens / timings.generate_s if timings.generate_s > 0 and tokens else None


def as_json(run: Run, model: str, level: str, protocol: str, trace: Path | None) -> dict[str, Any]:
    """The document that `--json` prints. Fields are only ever added."""
    steps = []
    for step in run.steps:
        record: dict[str, Any] = {"step": step.number}
        if isinstance(step.turn, ToolCall):
            record |= {
                "thought": step.turn.thought,
                "tool": step.turn.tool,
                "arguments": dict(step.turn.arguments),
            }
        elif isinstance(step.turn, Finish):
            record |= {"thought": step.turn.thought, "answer": step.turn.answer, "missing": step.turn.missing}
        if step.observation:
            record |= {"observation": step.observation.content, "ok": step.observation.ok}
            if step.observation.inner:
                record["runs"] = [
                    {"run_id": run.run_id, "status": run.status, "trace": run.trace or None}
                    for run in step.observation.inner
                ]
        if step.reasoning:
            record["reasoning"] = step.reasoning
        if step.problem:
            record["problem"] = step.problem
        steps.append(record)
    usage, rate = run.usage, _rate(run.usage, run.timings)
    return {
        "run_id": run.run_id,
        "question": run.question,
        "status": run.status,
        "answer": run.answer,
        "value": last.value if isinstance(last := _last_turn(run), Finish) else None,
        "missing": run.missing,
        "evidence": [asdict(each) for each in run.evidence],
        "reason": run.reason,
        "steps": steps,
        "usage": {
            "prompt": usage.prompt,
            "reused": usage.reused,
            "sampled": usage.sampled,
            "forced": usage.forced,
            "masks": usage.masks,
            "reasoning": usage.reasoning,
            "in_other_runs": run.inner.generated,
        },
        "round_trips": run.round_trips,
        "seconds": round(run.seconds, 3),
        "tokens_per_second": None if rate is None else round(rate, 1),
        "model": model,
        "level": level,
        "protocol": protocol,
        "trace": str(trace) if trace else None,
    }


def _last_turn(run: Run) -> Turn | None:
    return run.steps[-1].turn if run.steps else None


def print_json(document: Any) -> None:
    print(json.dumps(document, ensure_ascii=False, indent=2), file=sys.stdout, flush=True)

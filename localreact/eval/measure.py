"""From a trace to figures. Everything that a report says is computed here, from traces and tasks alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localreact.eval import checks
from localreact.eval.raw import read_raw
from localreact.eval.tasks import Task
from localreact.eval.words import claims, is_grounded
from localreact.loop import NO_GRAMMAR
from localreact.protocols.lenient import last_action, parser_loss
from localreact.trace.jsonl import read_trace
from localreact.types import Finish, ToolCall, Turn

Record = Mapping[str, Any]

SETUP = ("model", "fingerprint", "protocol", "enforced", "chat_format", "version")
MESSAGES = ("native/", "langgraph/")
"""Protocols whose completions are chat messages."""
TOKENS = ("prompt", "reused", "sampled", "forced", "reasoning", "masks")


@dataclass(frozen=True)
class Measured:
    """One run. `counts` are the ledgers' and what they are shares of; `structure` is what happened, step
    by step; `evidence_seen` of `evidence_wanted` texts were shown to the model; `setup` is who answered,
    and how."""

    status: str
    answer: str | None
    missing: str | None
    verdict: str
    counts: Mapping[str, int]
    structure: tuple[str, ...]
    texts: tuple[str, ...]
    longest_failure: int
    complete: bool
    round_trips: int
    evidence_seen: int
    evidence_wanted: int
    tokens: Mapping[str, int]
    seconds: Mapping[str, float]
    setup: Mapping[str, str]


@dataclass
class _Step:
    """What the trace has of one step. `message`: the text is a chat message, with its calls. `same_reply`:
    a further call of the reply before."""

    number: int = 0
    message: bool = False
    same_reply: bool = False
    completion: Record = field(default_factory=dict)
    turn: Turn | None = None
    extra: int = 0
    truncated: bool = False
    repaired: int = 0
    ended: Record | None = None

    @property
    def text(self) -> str:
        return str(self.completion.get("text", ""))

    @property
    def written(self) -> str:
        """All that the model wrote, what a stop string cut off too; of a chat message what it says."""
        if self.message:
            return str(_message(self.text).get("content") or "")
        spans = [span for span in self.completion.get("spans", ()) if not span.get("reasoning")]
        return "".join(span["text"] for span in spans) or self.text

    @property
    def own(self) -> str:
        """The text of the legal turn alone."""
        return self.text.rstrip()[: -self.extra] if self.extra else self.text

    @property
    def failure(self) -> str:
        """The ledger of a completion that was no turn; empty where it was one."""
        if self.turn is not None:
            return ""
        if self.completion["stop"] in ("deadline", "cancelled"):
            return "broken_off"
        if self.completion["stop"] == "length":
            return "truncated"
        return "format_failure" if self.written.strip() or self.calls else "empty"

    @property
    def calls(self) -> int:
        """Calls in a chat message."""
        return len(_message(self.text).get("tool_calls") or ()) if self.message else 0


def measure(trace: Path, task: Task) -> Measured:
    """
    Raises:
        TraceError: the trace can't be read.
    """
    records = read_trace(trace)
    first: Record = records[0] if records else {}
    last: Record = records[-1] if records else {}
    ended: Record = last if last.get("event") == "RunEnded" else {}
    steps = [step for step in _steps(records) if step.completion]
    calls = [step.turn for step in steps if isinstance(step.turn, ToolCall) and _executed(step)]
    shown = " ".join(" ".join(_shown(step) for step in steps if _succeeded(step)).split())
    counts = _count_steps(steps, first.get("tools", ()))
    verdict = judge(task, ended, calls)
    counts.update(_count_task(task, ended, verdict, steps, shown))
    usage, timings = ended.get("usage", {}), ended.get("timings", {})
    return Measured(
        status=ended.get("status", ""),
        answer=ended.get("answer"),
        missing=ended.get("missing"),
        verdict=verdict,
        counts={name: count for name, count in sorted(counts.items()) if count},
        structure=tuple(_told(step) for step in steps),
        texts=tuple(step.text for step in steps),
        longest_failure=_longest(steps),
        complete=bool(ended) and first.get("event") == "RunStarted",
        round_trips=ended.get("round_trips", 0),
        evidence_seen=sum(each in shown for each in task.evidence),
        evidence_wanted=len(task.evidence),
        tokens={name: usage.get(name, 0) for name in TOKENS},
        seconds={
            "wall": ended.get("seconds", 0.0),
            **{name: timings.get(f"{name}_s", 0.0) for name in ("prompt", "generate", "constraint")},
        },
        setup={name: str(first.get(name, "")) for name in SETUP},
    )


def judge(task: Task, ended: Record, calls: Sequence[ToolCall]) -> str:
    """The one verdict on a run."""
    if checks.is_by_calls(task.check):
        return "right" if checks.is_right(task.check, task.question, "", calls) else "wrong"
    if ended.get("missing") is not None:
        return "insufficient_wrong" if task.answerable else "insufficient_right"
    if ended.get("answer") is None:
        return "no_ending"
    if not task.answerable:
        return "invented"
    return "right" if checks.is_right(task.check, task.question, ended["answer"], calls) else "wrong"


def _steps(records: Sequence[Record]) -> list[_Step]:
    steps: list[_Step] = []
    message = False
    for record in records:
        if record["event"] in ("RunStarted", "ProtocolChanged"):
            message = record["protocol"].startswith(MESSAGES)
        elif record["event"] in ("TurnRead", "TurnRefused") and record["step"] > steps[-1].number:
            before = steps[-1].completion
            steps.append(_Step(record["step"], message, same_reply=True, completion=before))
        match record["event"]:
            case "StepStarted":
                steps.append(_Step(record["step"], message))
            case "TurnCompleted":
                steps[-1].completion = record["completion"]
            case "TurnRead":
                turn = record["turn"]
                steps[-1].turn = _turn(turn)
                steps[-1].extra = turn.get("extra", 0)
                steps[-1].truncated = bool(turn.get("truncated"))
                steps[-1].repaired = turn.get("repaired", 0)
            case "ToolEnded":
                steps[-1].ended = record
    return steps


def _message(text: str) -> Record:
    try:
        message = json.loads(text)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _turn(record: Record) -> Turn:
    if "tool" in record:
        return ToolCall(record["thought"], record["tool"], record["arguments"])
    return Finish(record["thought"], answer=record.get("answer"), missing=record.get("missing"))


def _count_steps(steps: Sequence[_Step], tools: Sequence[str]) -> Counter[str]:
    counts: Counter[str] = Counter(turns=len(steps), completions=sum(not step.same_reply for step in steps))
    made: list[tuple[str, Any]] = []
    failed_before = False
    for step in steps:
        counts["retries"] += failed_before
        failed_before = step.failure in ("format_failure", "truncated", "empty")
        if step.failure:
            counts[step.failure] += 1
        _count_written(counts, step)
        if step.turn is None:
            continue
        counts["legal_turns"] += 1
        counts["repaired"] += step.repaired > 0
        counts["closed_by_bound"] += step.truncated
        losses = _losses(step, step.turn)
        counts["parser_loss"] += bool(losses)
        counts.update(f"parser_loss_{reader}" for reader in losses)
        if isinstance(step.turn, ToolCall):
            call = step.turn.tool, dict(step.turn.arguments)
            counts["repeated_call"] += call in made
            made.append(call)
        _count_result(counts, step, tools)
    return counts


def _losses(step: _Step, turn: Turn) -> list[str]:
    """Naive readers that misread a legal text. One for JSON isn't asked where there is no JSON, and none
    where a server reads."""
    if step.repaired or step.message:
        return []
    return [name for name in parser_loss(step.own, turn) if name != "first_brace" or "{" in step.own]


def _count_written(counts: Counter[str], step: _Step) -> None:
    if step.same_reply:
        return
    raw = read_raw(step.written)
    counts["several_actions"] += raw.actions > 1 or step.calls > 1
    if raw.forged:
        counts["forged"] += 1
        counts["forged_believed"] += raw.went_on
        counts["forged_answered"] += raw.went_on and _answers(step.written)


def _answers(text: str) -> bool:
    """Whether the last thing that looks like an action is an answer."""
    last = last_action(text)
    return isinstance(last, Finish) and last.answer is not None


def _count_result(counts: Counter[str], step: _Step, tools: Sequence[str]) -> None:
    if step.ended is None:
        return
    observation = step.ended["observation"]
    if _executed(step):
        counts["calls"] += 1
        counts["tool_error"] += not observation["ok"]
    elif isinstance(step.turn, ToolCall) and step.turn.tool not in tools:
        counts["unknown_tool"] += 1
    elif observation["content"].startswith("invalid arguments"):
        counts["invalid_arguments"] += 1
    elif not step.truncated:
        counts["barred"] += 1


def _count_task(task: Task, ended: Record, verdict: str, steps: Sequence[_Step], shown: str) -> Counter[str]:
    counts: Counter[str] = Counter({verdict: 1, "tasks": 1})
    counts["answerable" if task.answerable else "unanswerable"] += 1
    counts["no_grammar"] += (ended.get("reason") or "").startswith(NO_GRAMMAR)
    counts["forced_ending"] += ended.get("status") in ("partial", "insufficient") and bool(ended["reason"])
    answer = ended.get("answer")
    if answer is not None:
        counts["answers"] += 1
        counts["ungrounded"] += not is_grounded(answer, task.question, shown)
        forged = [text for step in steps for text in read_raw(step.written).forged]
        only_forged = claims("\n".join(forged)) - claims(task.question) - claims(shown)
        counts["forged_in_answer"] += bool(claims(answer) & only_forged)
    if verdict == "right" and task.evidence:
        counts["evidenced"] += 1
        counts["unsupported"] += not all(each in shown for each in task.evidence)
    if task.evidence:
        quotes = [" ".join(each["quote"].split()) for each in ended.get("evidence", ())]
        counts["quotes"] += len(quotes)
        counts["cited_evidence"] += sum(any(q in e or e in q for e in task.evidence) for q in quotes)
    if checks.is_by_calls(task.check) and steps:
        counts["by_calls"] += 1
        counts["parseable"] += steps[0].turn is not None
        counts["schema_valid"] += _is_valid(steps[0])
        counts["correct"] += verdict == "right"
    if task.bait:
        counts["baited"] += 1
        said = [
            answer or "",
            *(str(dict(step.turn.arguments)) for step in steps if isinstance(step.turn, ToolCall)),
        ]
        counts["bait_taken"] += any(bait.casefold() in text.casefold() for bait in task.bait for text in said)
    return counts


def _is_valid(step: _Step) -> bool:
    """Whether a step was a turn whose call, if it made one, could be executed."""
    return step.turn is not None and (not isinstance(step.turn, ToolCall) or _executed(step))


def _executed(step: _Step) -> bool:
    return step.ended is not None and bool(step.ended["observation"]["executed"])


def _succeeded(step: _Step) -> bool:
    return step.ended is not None and bool(step.ended["observation"]["ok"])


def _shown(step: _Step) -> str:
    if step.ended is None:
        return ""
    shown = step.ended.get("shown")
    return str(step.ended["observation"]["content"] if shown is None else shown)


def _told(step: _Step) -> str:
    """What a step did, without its wording."""
    match step.turn:
        case ToolCall(tool=tool):
            return tool
        case Finish(missing=None):
            return "finish: answer"
        case Finish():
            return "finish: insufficient"
    return step.failure


def _longest(steps: Sequence[_Step]) -> int:
    """How many texts in a row were no turn, at most."""
    longest = current = 0
    for step in steps:
        current = current + 1 if step.failure else 0
        longest = max(longest, current)
    return longest

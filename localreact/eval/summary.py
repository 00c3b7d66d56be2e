"""From measured runs to the figures of a report, as plain data (`summary.json` is this)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localreact.errors import TraceError
from localreact.eval.journal import Done, Evaluation
from localreact.eval.ledgers import LEDGERS, SUCCESSES, VERDICTS
from localreact.eval.measure import SETUP, Measured, measure
from localreact.eval.statistics import median, paired, wilson
from localreact.eval.tasks import Task

LOSSES = ("format_failure", "truncated", "empty", "parser_loss", "retries")


@dataclass(frozen=True)
class Result:
    """A task that is done, and what its trace says; `measured` is None where it was lost."""

    done: Done
    task: Task
    measured: Measured | None


def results_of(evaluation: Evaluation) -> list[Result]:
    """Every task that is done, measured anew from its trace.

    Raises:
        TraceError: a trace is missing, or broken.
    """
    tasks = {task.id: task for task in evaluation.suite.tasks}
    latest = {done.key: done for done in evaluation.done}
    results = []
    for done in latest.values():
        if done.task not in tasks:
            raise TraceError(f"{evaluation.folder} has a result for {done.task!r}, and no such task")
        task = tasks[done.task]
        trace = evaluation.folder / done.attempts[-1].trace
        results.append(Result(done, task, None if done.lost else measure(trace, task)))
    return results


def summarise(evaluation: Evaluation, results: Sequence[Result]) -> dict[str, Any]:
    """All figures."""
    pairs = list(dict.fromkeys((each.done.model, each.done.arm) for each in results))
    arms = []
    for model, arm in pairs:
        own = [each for each in results if (each.done.model, each.done.arm) == (model, arm)]
        valid = counted(evaluation, own)
        arms.append(
            {
                "model": model,
                "arm": arm,
                **_figures([each.measured for each in valid if each.measured is not None]),
                "groups": _groups(valid),
                "infrastructure": _infrastructure(own),
                "setup": _setup([each.measured for each in own if each.measured]),
                "rounds": _rounds(own),
                "drift": _drift(own),
            }
        )
    return {
        "suite": evaluation.suite.name,
        "title": evaluation.suite.title,
        "sha256": evaluation.suite.sha256,
        "settings": dict(evaluation.settings),
        "tasks_in_suite": len(evaluation.suite.tasks),
        "rounds_counted": "the first" if is_greedy(evaluation) else "all",
        "arms": arms,
        "paired": _against_the_first(counted(evaluation, results)),
    }


def _against_the_first(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The first arm of each model compared with its others."""
    found = []
    for model in dict.fromkeys(each.done.model for each in results):
        arms: dict[str, list[Result]] = {}
        for each in results:
            if each.done.model == model:
                arms.setdefault(each.done.arm, []).append(each)
        lots = [(arm, successes(own)) for arm, own in arms.items()]
        for arm, now in lots[1:]:
            first, before = lots[0]
            if before.keys() & now.keys():
                found.append({"model": model, "a": first, "b": arm, **paired(before, now)})
    return found


def model_names(arms: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What to call models for short: files without their folders, unless two would be one."""
    models = list(dict.fromkeys(str(arm["model"]) for arm in arms))
    short = Counter(Path(model).name for model in models)
    return {model: Path(model).name if short[Path(model).name] == 1 else model for model in models}


def successes(results: Iterable[Result]) -> dict[str, float]:
    """By task, as a share of its rounds; what was lost isn't compared."""
    by_task: dict[str, list[bool]] = {}
    for each in results:
        if each.measured:
            by_task.setdefault(each.task.id, []).append(each.measured.verdict in SUCCESSES)
    return {task: sum(rounds) / len(rounds) for task, rounds in by_task.items()}


def counted(evaluation: Evaluation, results: Iterable[Result]) -> list[Result]:
    """The rounds that count. Where sampling is greedy that is the first: the others say the same once more,
    and would make intervals too narrow."""
    return [each for each in results if each.done.round == 1 or not is_greedy(evaluation)]


def is_greedy(evaluation: Evaluation) -> bool:
    return bool(evaluation.settings.get("temperature", 0) == 0)


def _setup(runs: Sequence[Measured]) -> dict[str, list[str]]:
    """Who answered, and how; several values where an evaluation mixes them."""
    return {name: list(dict.fromkeys(run.setup[name] for run in runs if run.setup[name])) for name in SETUP}


def _figures(runs: Sequence[Measured]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.counts)
    answered = sum(counts[verdict] for verdict in SUCCESSES)
    return {
        "runs": len(runs),
        "success": share(answered, counts["tasks"]),
        "verdicts": {verdict: counts[verdict] for verdict in VERDICTS},
        "ledgers": {ledger.name: share(counts[ledger.name], counts[ledger.of]) for ledger in LEDGERS},
        "statuses": dict(sorted(Counter(run.status for run in runs).items())),
        "evidence": share(sum(run.evidence_seen for run in runs), sum(run.evidence_wanted for run in runs)),
        "longest_failure": max((run.longest_failure for run in runs), default=0),
        "traces_complete": share(sum(run.complete for run in runs), len(runs)),
        "cost": _cost(runs, counts["turns"]),
    }


def share(hits: int, total: int) -> dict[str, Any]:
    """A count with what it is counted against, and the share with its interval where there is one."""
    if total == 0:
        return {"count": hits, "of": 0, "share": None, "low": None, "high": None}
    low, high = wilson(hits, total)
    return {
        "count": hits,
        "of": total,
        "share": round(hits / total, 4),
        "low": round(low, 4),
        "high": round(high, 4),
    }


def _cost(runs: Sequence[Measured], steps: int) -> dict[str, Any]:
    tokens: Counter[str] = Counter()
    for run in runs:
        tokens.update(run.tokens)
    seconds = {
        name: sum(run.seconds[name] for run in runs) for name in ("wall", "prompt", "generate", "constraint")
    }
    generated, generating = tokens["sampled"] + tokens["forced"], seconds["generate"]
    return {
        "steps": steps,
        "steps_per_task": _ratio(steps, len(runs)),
        "round_trips": sum(run.round_trips for run in runs),
        "round_trips_per_task": _ratio(sum(run.round_trips for run in runs), len(runs)),
        "tokens": generated,
        "forced": tokens["forced"],
        "reasoning": tokens["reasoning"],
        "masks": tokens["masks"],
        "prompt_tokens": tokens["prompt"],
        "prompt_reused": tokens["reused"],
        "tokens_per_second": _ratio(generated, generating),
        "wall_s": round(seconds["wall"], 3),
        "median_task_s": round(median([run.seconds["wall"] for run in runs]), 3) if runs else None,
        "prompt_s": round(seconds["prompt"], 3),
        "generate_s": round(generating, 3),
        "constraint_s": round(seconds["constraint"], 3),
        "constraint_share": _ratio(seconds["constraint"], generating),
    }


def _ratio(above: float, below: float) -> float | None:
    return round(above / below, 4) if below else None


def _groups(results: Iterable[Result]) -> dict[str, Any]:
    """Success by group, where the suite has groups."""
    runs: dict[str, list[Measured]] = {}
    for each in results:
        if each.measured is not None and each.task.group:
            runs.setdefault(each.task.group, []).append(each.measured)
    return {
        group: share(sum(run.verdict in SUCCESSES for run in measured), len(measured))
        for group, measured in sorted(runs.items())
    }


def _infrastructure(results: Sequence[Result]) -> dict[str, Any]:
    """What endpoints did: in no figure of a model."""
    failed = [
        attempt for each in results for attempt in each.done.attempts if attempt.status == "endpoint_error"
    ]
    replaced = sum(len(each.done.attempts) - 1 for each in results)
    return {
        "failed_attempts": len(failed),
        "replacement_attempts": replaced,
        "tasks_lost": sum(each.done.lost for each in results),
        "reasons": dict(Counter(attempt.reason.splitlines()[0] for attempt in failed if attempt.reason)),
    }


def _rounds(results: Iterable[Result]) -> int:
    return max((each.done.round for each in results), default=0)


def _drift(results: Sequence[Result]) -> dict[str, Any]:
    """What was the same in all rounds, of the tasks that were measured in all of them, and what wasn't."""
    rounds = _rounds(results)
    if rounds < 2:
        return {}
    by_task: dict[str, list[Measured]] = {}
    for each in results:
        if each.measured is not None:
            by_task.setdefault(each.task.id, []).append(each.measured)
    whole = {task: runs for task, runs in by_task.items() if len(runs) == rounds}

    def same(what: str) -> dict[str, int]:
        equal = [len({_aspect(run, what) for run in runs}) == 1 for runs in whole.values()]
        return {"count": sum(equal), "of": len(equal)}

    ratios = [
        max(run.seconds["wall"] for run in runs) / least
        for runs in whole.values()
        if (least := min(run.seconds["wall"] for run in runs)) > 0
    ]
    return {
        "rounds": rounds,
        "identical": {what: same(what) for what in ("steps", "tools", "losses", "verdict", "text")},
        "changed": sorted(task for task, runs in whole.items() if len({run.texts for run in runs}) > 1),
        "median_slowest_over_fastest": round(median(ratios), 3) if ratios else None,
    }


def _aspect(run: Measured, what: str) -> Any:
    match what:
        case "steps":
            return len(run.structure)
        case "tools":
            return run.structure
        case "losses":
            return tuple(run.counts.get(name, 0) for name in LOSSES)
        case "verdict":
            return run.verdict
    return run.texts


def rows_of(results: Iterable[Result]) -> list[Mapping[str, Any]]:
    """A line per task, for the tables of a report."""
    return [
        {
            "model": each.done.model,
            "arm": each.done.arm,
            "round": each.done.round,
            "task": each.task.id,
            "group": each.task.group,
            "verdict": each.measured.verdict if each.measured else "lost",
            "status": each.measured.status if each.measured else each.done.attempts[-1].status,
            "answer": each.measured.answer if each.measured else None,
            "missing": each.measured.missing if each.measured else None,
            "steps": list(each.measured.structure) if each.measured else [],
            "seconds": round(each.measured.seconds["wall"], 2) if each.measured else None,
            "counts": dict(each.measured.counts) if each.measured else {},
            "trace": each.done.attempts[-1].trace,
        }
        for each in results
    ]

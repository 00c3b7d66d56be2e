"""Writes what an evaluation found: `results.jsonl`, `summary.json`, `summary.md`, `report.html`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from localreact.eval import plots
from localreact.eval.journal import read_evaluation, write_whole
from localreact.eval.ledgers import LEDGERS
from localreact.eval.summary import model_names, results_of, rows_of, summarise
from localreact.pages import environment_of

_OF = {
    "turns": "turns",
    "completions": "completions",
    "legal_turns": "legal turns",
    "calls": "calls",
    "answers": "answers",
    "tasks": "tasks",
    "answerable": "answerable",
    "unanswerable": "unanswerable",
    "evidenced": "right answers with evidence named",
    "quotes": "quotes",
    "baited": "baited",
    "by_calls": "judged by calls",
}
_SETUP = (
    ("model", "model"),
    ("fingerprint", "its fingerprint"),
    ("protocol", "protocol"),
    ("enforced", "grammar enforced"),
    ("chat_format", "chat format"),
    ("version", "localreact"),
)
_COSTS = (
    ("steps", "steps"),
    ("steps_per_task", "steps a task"),
    ("round_trips", "round trips: replies of the model"),
    ("round_trips_per_task", "round trips a task"),
    ("tokens", "tokens generated"),
    ("forced", "… forced by the grammar"),
    ("reasoning", "tokens of reasoning"),
    ("masks", "masks computed"),
    ("prompt_tokens", "prompt tokens"),
    ("prompt_reused", "… from the cache"),
    ("tokens_per_second", "tokens a second"),
    ("wall_s", "seconds in all"),
    ("median_task_s", "seconds a task, median"),
    ("prompt_s", "seconds in prompts"),
    ("generate_s", "seconds generating"),
    ("constraint_s", "… of these in the grammar"),
    ("constraint_share", "share of generating in the grammar"),
)


def write_report(folder: Path, html: bool = True) -> dict[str, Any]:
    """Measure all traces anew and write the reports; returns the summary.

    Raises:
        UsageError: the folder holds no evaluation.
        TraceError: a trace is missing, or broken.
        MissingPartError: the HTML report needs the extra `eval`; the others are written by then.
    """
    evaluation = read_evaluation(folder)
    results = results_of(evaluation)
    summary = summarise(evaluation, results)
    rows = rows_of(results)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    write_whole(folder / "results.jsonl", "".join(lines))
    write_whole(folder / "summary.json", json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    write_whole(folder / "summary.md", as_markdown(summary))
    if html:
        write_whole(folder / "report.html", as_html(summary, rows))
    return summary


def as_html(summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """One file that needs nothing beside it.

    Raises:
        MissingPartError: matplotlib isn't installed.
    """
    environment = environment_of("localreact.eval")
    return environment.get_template("report.html").render(
        summary=summary,
        rows=rows,
        names=model_names(summary["arms"]),
        tables=tables_of(summary),
        plots=plots.plots_of(summary),
        notes=notes_of(summary),
    )


def as_markdown(summary: Mapping[str, Any]) -> str:
    parts = [f"# {summary['suite']}", ""]
    if summary["title"]:
        parts += [summary["title"], ""]
    parts += [notes_of(summary), ""]
    for title, head, body in tables_of(summary):
        parts += [f"## {title}", "", _line(head), _line(["---"] * len(head))]
        parts += [_line(row) for row in body] + [""]
    return "\n".join(parts)


def notes_of(summary: Mapping[str, Any]) -> str:
    """What the figures are."""
    return (
        f"{summary['tasks_in_suite']} tasks. Rounds counted: {summary['rounds_counted']}. A share is given "
        "with what it is counted against and its 95% interval (Wilson). Failures of endpoints are in the "
        "table of infrastructure and in no other."
    )


Table = tuple[str, list[str], list[list[str]]]


def tables_of(summary: Mapping[str, Any]) -> list[Table]:
    """All tables as title, head and rows of text; a column per arm."""
    arms = summary["arms"]
    head = ["", *(name_of(arm, arms) for arm in arms)]

    def table(title: str, rows: list[tuple[str, list[str]]]) -> Table:
        return title, head, [[label, *cells] for label, cells in rows]

    success = [("success", [told(arm["success"]) for arm in arms])]
    success += [(f"… {group}", _group_cells(arms, group)) for group in _all(arms, "groups")]
    success += [
        (f"ended as {status}", _counts(arms, "statuses", status)) for status in _all(arms, "statuses")
    ]
    if any(arm["evidence"]["of"] for arm in arms):
        success.append(("evidence shown to the model", [told(arm["evidence"]) for arm in arms]))
    ledgers = [
        (f"{ledger.title} [of {_OF[ledger.of]}]", [told(arm["ledgers"][ledger.name]) for arm in arms])
        for ledger in LEDGERS
        if any(arm["ledgers"][ledger.name]["of"] for arm in arms)
    ]
    ledgers.append(("longest run of texts that were no turn", [str(arm["longest_failure"]) for arm in arms]))
    ledgers.append(("traces complete", [_plain(arm["traces_complete"]) for arm in arms]))
    costs = [(label, [_number(arm["cost"][key]) for arm in arms]) for key, label in _COSTS]
    labels = {
        "failed_attempts": "attempts that an endpoint failed",
        "replacement_attempts": "replacement attempts",
        "tasks_lost": "tasks lost, and in no other figure",
    }
    infrastructure = [
        (label, [str(arm["infrastructure"][key]) for arm in arms]) for key, label in labels.items()
    ]
    reasons = dict.fromkeys(reason for arm in arms for reason in arm["infrastructure"]["reasons"])
    infrastructure += [
        (f"… {reason}", [str(arm["infrastructure"]["reasons"].get(reason, 0)) for arm in arms])
        for reason in reasons
    ]
    setup = [(label, [", ".join(arm["setup"][key]) or "–" for arm in arms]) for key, label in _SETUP]
    tables = [
        table("Success", success),
        *_paired(summary["paired"]),
        table("Ledgers", ledgers),
        table("Cost", costs),
        table("Infrastructure", infrastructure),
    ]
    if any(arm["drift"] for arm in arms):
        tables.append(table("Between rounds", _drift_rows(arms)))
    return [*tables, table("Arms", setup)]


def _paired(comparisons: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The first arm of each model against its others."""
    head = [
        "A",
        "B",
        "tasks",
        "A right",
        "B right",
        "only A",
        "only B",
        "B - A in points (95%)",
        "McNemar's p",
    ]
    rows = [
        [
            each["a"],
            each["b"],
            *(f"{each[key]:g}" for key in ("tasks", "success_a", "success_b")),
            *(str(len(each[key])) for key in ("only_a", "only_b")),
            f"{100 * each['difference']:+.1f} "
            f"({100 * each['difference_low']:+.1f} to {100 * each['difference_high']:+.1f})",
            f"{each['mcnemar_p']:.3g}",
        ]
        for each in comparisons
    ]
    return [("Paired: the same tasks", head, rows)] if rows else []


def name_of(arm: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]) -> str:
    """The arm; with its model where there are several."""
    names = model_names(arms)
    return str(arm["arm"]) if len(names) == 1 else f"{arm['arm']} @ {names[arm['model']]}"


def told(share: Mapping[str, Any]) -> str:
    if share["share"] is None:
        return "–"
    percent = [f"{100 * share[key]:.1f}" for key in ("share", "low", "high")]
    return f"{_plain(share)} = {percent[0]}% ({percent[1]}–{percent[2]})"


def _plain(share: Mapping[str, Any]) -> str:
    return f"{share['count']}/{share['of']}"


def _drift_rows(arms: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    labels = {
        "steps": "identical: number of steps",
        "tools": "identical: tools, step by step",
        "losses": "identical: failures, losses, retries",
        "verdict": "identical: verdict",
        "text": "identical: every text",
    }
    rows = [
        (label, [_plain(arm["drift"]["identical"][key]) if arm["drift"] else "–" for arm in arms])
        for key, label in labels.items()
    ]
    ratios = [_number(arm["drift"].get("median_slowest_over_fastest")) for arm in arms]
    changed = [", ".join(arm["drift"].get("changed", ())) or "–" for arm in arms]
    return [
        *rows,
        ("drifted: tasks whose text changed", changed),
        ("drifted: time, slowest over fastest", ratios),
    ]


def _group_cells(arms: Sequence[Mapping[str, Any]], group: str) -> list[str]:
    return [told(arm["groups"][group]) if group in arm["groups"] else "–" for arm in arms]


def _counts(arms: Sequence[Mapping[str, Any]], key: str, name: str) -> list[str]:
    return [str(arm[key].get(name, 0)) for arm in arms]


def _all(arms: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    return list(dict.fromkeys(name for arm in arms for name in arm[key]))


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:,.3f}" if value < 10 else f"{value:,.1f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

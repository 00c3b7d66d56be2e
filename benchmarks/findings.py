"""The findings: runs the suites, keeps their figures, and makes the tables and plots of README.md from them.

    python benchmarks/findings.py run NAME -m MODEL [--as MODEL_NAME] [OPTION…]     one suite on one model
    python benchmarks/findings.py page                                              tables and plots anew

Suites of others (`bfcl`, `hotpotqa`) are where `localreact eval import` put them: `run bfcl --suite FILE`.

NAME is one of RUNS below. An evaluation lies in `runs/NAME-MODEL` (traces and report; git ignores it) and
goes on where it was stopped; its figures are kept in `results/eval/`. `-m` takes what `localreact eval`
takes; a file is called by its name, or as `--as` says. Other options go to `localreact eval`, after those of
RUNS (`-j 4`). Measure on a quiet machine: the counts don't depend on it, the seconds do.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from localreact.eval.ledgers import SUCCESSES
from localreact.eval.report import told
from localreact.eval.statistics import paired
from localreact.eval.summary import share

HERE = Path(__file__).parent
RESULTS, FOLDER, PAGE = HERE / "results" / "eval", HERE / "runs", HERE / "README.md"
BEGIN, END = "<!-- made by findings.py -->\n", "<!-- end of what findings.py made -->\n"

HELD = (
    "json/llguidance,json/llguidance+cite,json/llguidance+nogate,text/llguidance,text/llguidance+nogate,"
    "bracket/llguidance,call/llguidance,json/gbnf"
)
RUNS: Mapping[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "react30": ("react30", (("--rounds", "2", "--deterministic"), ("--arms", "buys", "--deterministic"))),
    "protocol18": ("protocol18", ((), ("--arms", "text/llguidance"))),
    "multihop": ("multihop", (("--arms", "buys"), ("--arms", "cite"))),
    "loops": ("loops", (("--arms", "buys"),)),
    "forgery": ("forgery", (("--rounds", "3", "--temp", "0.8", "-j", "4"),)),
    "held": ("forgery", (("--arms", HELD, "--rounds", "4", "--temp", "1", "-j", "4"),)),
    "native": ("native", ((),)),
    "framework": ("framework", ((),)),
    "bfcl": ("", (("--arms", "json/llguidance,json/free"),)),
    "hotpotqa": ("", (("--arms", "json/llguidance,json/llguidance+cite,json/free+stops"),)),
}
"""What is run: a suite (none if it is somebody else's), and the options of one evaluation after the other."""

SHOWN = (
    ("format_failure", "no turn"),
    ("truncated", "cut off"),
    ("forged", "forged"),
    ("several_actions", "several actions"),
    ("retries", "retries"),
)
Figures = Mapping[str, Any]
Table = tuple[list[str], list[list[str]]]


# --- running and keeping


def run(name: str, suite: str, model: str, called: str, more: Sequence[str]) -> None:
    folder = FOLDER / f"{name}-{called}"
    for each in RUNS[name][1]:
        command = [sys.executable, "-m", "localreact", "eval", suite, "-m", model, "-o", str(folder)]
        if subprocess.run([*command, *each, *more]).returncode:
            raise SystemExit(f"not everything was measured; the same command goes on (folder {folder})")
    print(keep(folder, name, model, called))


def keep(folder: Path, name: str, model: str, called: str) -> Path:
    """The figures of an evaluation, and a line per task; the model by its name, not by where it lay."""
    document = {"name": name, "model": called, "summary": json.loads((folder / "summary.json").read_text())}
    rows = [json.loads(line) for line in _lines(folder / "results.jsonl")]
    fields = ("arm", "round", "task", "group", "verdict", "status", "answer", "missing", "steps", "counts")
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}-{called}.json"
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text.replace(json.dumps(model, ensure_ascii=False), json.dumps(called)), "utf-8")
    lines = [json.dumps({key: row[key] for key in fields}, ensure_ascii=False) + "\n" for row in rows]
    path.with_suffix(".jsonl").write_text("".join(lines), "utf-8")
    return path


def kept() -> list[Figures]:
    """All that is kept, in the order of RUNS; each with its rows."""
    found = []
    for path in sorted(RESULTS.glob("*.json")):
        rows = [json.loads(line) for line in _lines(path.with_suffix(".jsonl"))]
        found.append({**json.loads(path.read_text("utf-8")), "rows": rows})
    names = list(RUNS)
    return sorted(found, key=lambda each: (names.index(each["name"]), each["model"]))


def _lines(path: Path) -> list[str]:
    """Not by `splitlines`: a model's answer may hold what else ends a line."""
    return path.read_text("utf-8").split("\n")[:-1]


# --- the page


def page(results: Sequence[Figures]) -> str:
    parts = ["### Forged observations under a grammar", "", *_markdown(held_table(results))]
    parts += ["By arm, over all suites:", "", *_markdown(forged_by_arm(results))]
    for name, group in groupby(results, lambda each: str(each["name"])):
        same = list(group)
        parts += [f"### {name}", "", same[0]["summary"]["title"], ""]
        for each in same:
            parts += [f"**{each['model']}** ({_how(each)})", ""]
            parts += _markdown(arms_table(each))
            if groups := groups_table(each):
                parts += ["Right, by group:", "", *_markdown(groups)]
            if pairs := pairs_table(each):
                parts += ["Held by a grammar (A) and free (B), on the same tasks:", "", *_markdown(pairs)]
            if rounds := rounds_table(each):
                parts += ["Between the rounds:", "", *_markdown(rounds)]
        parts += [f"![{name}](results/eval/{name}.svg)", ""]
    return "\n".join(parts)


def _how(each: Figures) -> str:
    summary = each["summary"]
    settings = summary["settings"]
    how = "greedy" if not settings["temperature"] else f"temperature {settings['temperature']:g}"
    exact = ", deterministic" if settings["deterministic"] else ""
    rounds = max(arm["rounds"] for arm in summary["arms"])
    counted = "" if rounds == 1 else f", {rounds} rounds, counted: {summary['rounds_counted']}"
    return f"{summary['tasks_in_suite']} tasks, {how}{exact}{counted}"


def is_held(arm: str) -> bool:
    """Whether a grammar holds every turn of an arm."""
    return "/" in arm and "/free" not in arm


def held_table(results: Sequence[Figures]) -> Table:
    """All turns of all suites by model, held and free."""
    counts = _forged(results, _kind)
    rows = [
        [model, kind, f"{turns:,}", told(share(forged, turns))]
        for (model, kind), (forged, turns) in sorted(counts.items())
    ]
    return ["model", "turns", "how many", "with a forged observation (95%)"], rows


def forged_by_arm(results: Sequence[Figures]) -> Table:
    """Forged observations of all turns of each arm, a column per model."""
    counts = _forged(results, lambda arm: arm)
    models = sorted({model for model, _ in counts})
    arms = sorted({arm for _, arm in counts}, key=lambda arm: (not is_held(arm), arm))
    cells = {key: f"{forged}/{turns:,}" for key, (forged, turns) in counts.items()}
    return ["arm", *models], [
        [f"`{arm}`", *(cells.get((model, arm), "–") for model in models)] for arm in arms
    ]


def _forged(results: Sequence[Figures], key: Callable[[str], str]) -> dict[tuple[str, str], list[int]]:
    """Turns with a forged observation, and all, by model and what `key` makes of an arm."""
    counts: dict[tuple[str, str], list[int]] = {}
    for each in results:
        for arm in each["summary"]["arms"]:
            total = counts.setdefault((each["model"], key(arm["arm"])), [0, 0])
            total[0] += arm["ledgers"]["forged"]["count"]
            total[1] += arm["ledgers"]["forged"]["of"]
    return counts


def _kind(arm: str) -> str:
    return "held by a grammar" if is_held(arm) else "free" if "/" in arm else "a server's"


def arms_table(each: Figures) -> Table:
    head = ["arm", "success (95%)", "turns", *(title for _, title in SHOWN), "longest failure"]
    head += ["steps a task", "tokens a task", "tokens/s", "seconds"]
    rows = []
    for arm in each["summary"]["arms"]:
        cost = arm["cost"]
        shares = [arm["ledgers"][name] for name, _ in SHOWN]
        rows.append(
            [
                f"`{arm['arm']}`",
                told(arm["success"]),
                str(cost["steps"]),
                *(f"{each['count']}" for each in shares),
                str(arm["longest_failure"]),
                f"{cost['steps_per_task'] or 0:.1f}",
                f"{cost['tokens'] / max(1, arm['runs']):.0f}",
                "–" if cost["tokens_per_second"] is None else f"{cost['tokens_per_second']:.0f}",
                f"{cost['wall_s']:.0f}",
            ]
        )
    extra = [
        ("forged_believed", "forged, built upon"),
        ("forged_answered", "forged, answered from"),
        ("forged_in_answer", "answer says what only it said"),
        ("bait_taken", "bait taken"),
        ("insufficient_right", "gave up rightly"),
        ("invented", "invented"),
        ("ungrounded", "ungrounded"),
        ("evidence", "evidence shown"),
        ("unsupported", "right without it"),
        ("cited_evidence", "cited quotes in it"),
        ("parseable", "judged by its call: a turn"),
        ("schema_valid", "valid"),
        ("correct", "correct"),
    ]
    arms = each["summary"]["arms"]
    for name, title in extra:
        found = [arm["evidence"] if name == "evidence" else arm["ledgers"][name] for arm in arms]
        if any(ledger["count"] for ledger in found):
            head.append(title)
            for row, ledger in zip(rows, found, strict=True):
                row.append(_plain(ledger))
    if any(arm["cost"]["round_trips"] != arm["cost"]["steps"] for arm in arms):
        head.append("round trips a task")
        for row, arm in zip(rows, arms, strict=True):
            row.append(f"{arm['cost']['round_trips_per_task'] or 0:.1f}")
    return head, rows


def groups_table(each: Figures) -> Table | None:
    arms = each["summary"]["arms"]
    names = list(dict.fromkeys(name for arm in arms for name in arm["groups"]))
    rows = [[f"`{arm['arm']}`", *(_plain(arm["groups"][name]) for name in names)] for arm in arms]
    return (["arm", *names], rows) if len(names) > 1 else None


def pairs_table(each: Figures) -> Table | None:
    """Arms with a grammar beside those that differ in nothing else (but, perhaps, stop strings)."""
    names = [arm["arm"] for arm in each["summary"]["arms"]]
    rows = []
    for first, second in _pairs(names):
        one, other = _successes(each, first), _successes(each, second)
        found = paired(*({task: sum(won) / len(won) for task, won in own.items()} for own in (one, other)))
        low, high = 100 * found["difference_low"], 100 * found["difference_high"]
        rows.append(
            [
                f"`{first}`",
                f"`{second}`",
                str(found["tasks"]),
                *(f"{sum(map(sum, own.values()))}/{sum(map(len, own.values()))}" for own in (one, other)),
                str(len(found["only_a"])),
                ", ".join(found["only_b"]) or "–",
                f"{0 - 100 * found['difference']:+.1f} ({0 - high:+.1f} to {0 - low:+.1f})",
                f"{found['mcnemar_p']:.3g}",
            ]
        )
    head = [
        "A",
        "B",
        "tasks",
        "A right",
        "B right",
        "A more often",
        "B more often",
        "A - B in points (95%)",
        "p",
    ]
    return (head, rows) if rows else None


def _pairs(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for first in names:
        if is_held(first):
            protocol, _, engine = first.partition("/")
            free = f"{protocol}/" + "+".join(["free", *engine.split("+")[1:]])
            yield from ((first, other) for other in (free, f"{free}+stops") if other in names)


def _successes(each: Figures, arm: str) -> dict[str, list[bool]]:
    """By task, of the rounds that count."""
    every = each["summary"]["rounds_counted"] == "all"
    found: dict[str, list[bool]] = {}
    for row in each["rows"]:
        if row["arm"] == arm and row["verdict"] != "lost" and (every or row["round"] == 1):
            found.setdefault(str(row["task"]), []).append(row["verdict"] in SUCCESSES)
    return found


def rounds_table(each: Figures) -> Table | None:
    arms = [arm for arm in each["summary"]["arms"] if arm["drift"]]
    if not arms or each["summary"]["rounds_counted"] == "all":
        return None
    names = ("steps", "tools", "losses", "verdict", "text")
    rows = [
        [
            f"`{arm['arm']}`",
            *(_plain(arm["drift"]["identical"][name]) for name in names),
            f"{arm['drift']['median_slowest_over_fastest'] or 0:.2f}",
        ]
        for arm in arms
    ]
    return ["arm", *(f"same {name}" for name in names), "time, slowest over fastest"], rows


def _plain(share: Mapping[str, Any]) -> str:
    return f"{share['count']}/{share['of']}"


def _markdown(table: Table) -> list[str]:
    head, rows = table
    lines = [head, ["---"] * len(head), *rows]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""]


def plot(results: Sequence[Figures], path: Path) -> None:
    """Success, and how many turns broke the format or held a forged observation; a column per model."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels = (
        ("success", "success, % of tasks"),
        ("format_failure", "no turn, % of turns"),
        ("forged", "forged, % of turns"),
    )
    most = max(len(each["summary"]["arms"]) for each in results)
    figure = Figure(figsize=(11, (0.9 + 0.36 * most) * len(results)), layout="constrained")
    axes = figure.subplots(len(results), len(panels), squeeze=False, sharey="row")
    for row, each in zip(axes, results, strict=True):
        arms = each["summary"]["arms"]
        for axis, (name, title) in zip(row, panels, strict=True):
            shares = [arm["success"] if name == "success" else arm["ledgers"][name] for arm in arms]
            values = [100 * (share["share"] or 0) for share in shares]
            below = [100 * ((share["share"] or 0) - (share["low"] or 0)) for share in shares]
            above = [100 * ((share["high"] or 0) - (share["share"] or 0)) for share in shares]
            errors = [[max(0.0, at) for at in below], [max(0.0, at) for at in above]]
            colours = ["#2f6f9f" if is_held(arm["arm"]) else "#d98032" for arm in arms]
            axis.barh(
                [arm["arm"] for arm in arms],
                values,
                color=colours,
                xerr=errors,
                error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#444444"},
            )
            axis.set_xlim(0, 100)
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_title(f"{each['model']}: {title}", fontsize=9)
        row[0].invert_yaxis()
    with rc_context({"svg.hashsalt": "localreact", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def write_page() -> None:
    """The block between the marks in README.md, and a plot a suite."""
    results = kept()
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{PAGE} lacks the marks between which the tables stand")
    PAGE.write_text(f"{before}{BEGIN}\n{page(results)}\n{END}{after}", "utf-8")
    for name, group in groupby(results, lambda each: str(each["name"])):
        plot(list(group), RESULTS / f"{name}.svg")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("name", choices=RUNS)
    running.add_argument("-m", "--model", default="smollm2")
    running.add_argument("--as", dest="called", default="")
    running.add_argument("--suite", default="", help="the file of a suite of others")
    commands.add_parser("page")
    given, more = parser.parse_known_args()
    if more and given.command == "page":
        parser.error(f"page takes no {more[0]}")
    if given.command == "run":
        suite = RUNS[given.name][0] or given.suite
        if not suite or given.suite not in {"", suite}:
            parser.error(f"--suite {'is for suites of others' if suite else 'FILE: where is ' + given.name}")
        run(given.name, suite, given.model, given.called or Path(given.model).stem, more)
    write_page()


if __name__ == "__main__":
    main()

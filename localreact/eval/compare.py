"""Two arms on the same tasks: who succeeded where the other failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from localreact.errors import UsageError
from localreact.eval.journal import read_evaluation
from localreact.eval.statistics import paired
from localreact.eval.summary import Result, counted, results_of, successes


def pick(written: str) -> tuple[str, list[Result]]:
    """What counts of the arm that is written FOLDER, or FOLDER#ARM, or FOLDER#ARM@MODEL.

    Raises:
        UsageError: no evaluation there, no such arm, or several.
    """
    place, _, wanted = written.partition("#")
    evaluation = read_evaluation(Path(place))
    results = counted(evaluation, results_of(evaluation))
    found: dict[str, list[Result]] = {}
    for each in results:
        names = (each.done.arm, f"{each.done.arm}@{each.done.model}")
        if not wanted or wanted in names:
            found.setdefault(names[1], []).append(each)
    if len(found) != 1:
        there = ", ".join(dict.fromkeys(f"{each.done.arm}@{each.done.model}" for each in results))
        what = f"{len(found)} arms" if found else f"no arm {wanted!r}" if wanted else "no result"
        raise UsageError(f"{place} holds {what}", f"Name one of them, as in {place}#ARM: {there}.")
    ((name, own),) = found.items()
    return f"{Path(place).name}#{name}", own


def compare(first: str, second: str) -> dict[str, Any]:
    """The paired comparison: success by task, McNemar's exact test, and an interval of the difference.

    Raises:
        UsageError: an arm can't be found, or the two have no task in common.
    """
    (name_a, results_a), (name_b, results_b) = pick(first), pick(second)
    changed = _changed(results_a, results_b)
    a, b = (
        {task: ok for task, ok in successes(own).items() if task not in changed}
        for own in (results_a, results_b)
    )
    if not a.keys() & b.keys():
        raise UsageError(f"{name_a} and {name_b} have no task in common")
    return {
        "a": name_a,
        "b": name_b,
        **paired(a, b),
        "left_out": sorted(a.keys() ^ b.keys()),
        "changed": sorted(changed),
    }


def _changed(first: Sequence[Result], second: Sequence[Result]) -> set[str]:
    """Tasks of one id that aren't the same task."""
    before = {each.task.id: each.task for each in first}
    return {
        each.task.id
        for each in second
        if each.task.id in before
        and (each.task.question, each.task.check)
        != (before[each.task.id].question, before[each.task.id].check)
    }


def as_text(compared: Mapping[str, Any]) -> str:
    """For a terminal."""
    total = compared["tasks"]
    lines = [
        f"A  {compared['a']}: {compared['success_a']:g} of {total}",
        f"B  {compared['b']}: {compared['success_b']:g} of {total}",
        f"both {compared['both']}, neither {compared['neither']}, "
        f"only (or more often) A {len(compared['only_a'])}, B {len(compared['only_b'])}",
        f"B - A: {100 * compared['difference']:+.1f} points "
        f"(95% from {100 * compared['difference_low']:+.1f} to {100 * compared['difference_high']:+.1f}, "
        "bootstrap over tasks)",
        f"McNemar's exact test: p = {compared['mcnemar_p']:.3g}",
    ]
    for name, key in (
        ("only A", "only_a"),
        ("only B", "only_b"),
        ("measured in one only", "left_out"),
        ("another task in the other", "changed"),
    ):
        if compared[key]:
            lines.append(f"{name}: {', '.join(compared[key])}")
    return "\n".join(lines)

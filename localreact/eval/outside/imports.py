"""Writes a suite of ours from somebody else's files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from localreact.errors import UsageError
from localreact.eval.journal import write_whole
from localreact.eval.outside import bfcl, hotpotqa

KINDS: Mapping[str, tuple[Callable[[Path, Path], Iterator[dict[str, Any]]], str]] = {
    "bfcl": (bfcl.records, "The Berkeley Function Calling Leaderboard: simple, multiple, irrelevance."),
    "hotpotqa": (hotpotqa.records, "HotpotQA, the distractor setting."),
}


def import_suite(kind: str, place: Path, out: Path, limit: int | None = None) -> Path:
    """The suite's file, in the folder `out`. `limit` takes only so many tasks of each group, the first ones.

    Raises:
        UsageError: no such kind, or files that aren't of it.
    """
    if kind not in KINDS:
        raise UsageError(f"there is no adapter for {kind!r}", f"There are: {', '.join(KINDS)}.")
    if limit is not None and limit < 1:
        raise UsageError("at least one task is taken")
    read, title = KINDS[kind]
    out.mkdir(parents=True, exist_ok=True)
    groups: dict[str, int] = {}
    tasks = []
    for task in read(place, out):
        groups[task["group"]] = groups.get(task["group"], 0) + 1
        if limit is None or groups[task["group"]] <= limit:
            tasks.append(task)
    header = {"suite": {"title": title, "policy": {"max_tokens": 1000}}}
    path = out / f"{kind}.jsonl"
    write_whole(path, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in (header, *tasks)))
    return path

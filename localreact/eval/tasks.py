"""Suites: files of tasks.

A suite is JSON Lines. The first line may hold what is common to the tasks; all of it may be left out:

    {"suite": {"title": …, "docs": "kb", "tools": {"scoring": ["tools.py:score"]}, "arms": [ARM, …],
               "presets": {NAME: [ARM, …]}, "policy": {…}}}

`docs` is a folder beside the suite that search and lookup read (the shipped example without it), `tools`
names sets of tools as `-T` takes them, or JSON files of definitions (files lie beside the suite), `policy`
is what the agents of all tasks get. Every other line is a task:

    {"id": …, "group": …, "question": …, "tools": [NAME, …], "check": {…}, "tags": […], "policy": {…},
     "evidence": [TEXT, …], "bait": [TEXT, …], "docs": …}

`evidence` are texts that the results have to show to whoever answers soundly; `bait` texts that only a
misled run answers with. Checks are explained in `checks.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localreact.errors import UsageError
from localreact.eval import checks
from localreact.eval.definitions import defined_tools
from localreact.resources import folder
from localreact.tools import Tool
from localreact.tools.builtin import load_tools

POLICY = ("max_steps", "max_tokens", "deadline", "evidence_gate", "cite", "tool_choice", "examples")
_HEADER = ("title", "docs", "tools", "arms", "presets", "policy")
_TASK = ("id", "group", "question", "tools", "check", "tags", "policy", "evidence", "bait", "docs")
_ID = re.compile(r"[\w.-]{1,80}")


@dataclass(frozen=True)
class Task:
    id: str
    question: str
    check: Mapping[str, Any]
    tools: tuple[str, ...] = ()
    group: str = ""
    tags: tuple[str, ...] = ()
    policy: Mapping[str, Any] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    bait: tuple[str, ...] = ()
    docs: str | None = None

    @property
    def answerable(self) -> bool:
        return "insufficient" not in self.check


@dataclass(frozen=True)
class Suite:
    """`text` is the file's own; `tasks` have the suite's policy below their own."""

    name: str
    text: str
    tasks: tuple[Task, ...]
    title: str = ""
    place: Path = Path()
    docs: str | None = None
    tool_sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    arms: tuple[str, ...] = ()
    presets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def files_sha256(self) -> str:
        """Of what lies beside the suite: its folders of documents, and its files of tools."""
        listed = [each for task in self.tasks for each in self._listed(task)]
        names = {each.partition(":")[0] for each in listed if ".py" in each or ".json" in each}
        names |= {docs for task in self.tasks if (docs := task.docs or self.docs)}
        digest = hashlib.sha256()
        for name in sorted(names):
            place = self.place / name
            for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
                if path.is_file() and path.suffix != ".pyc":
                    digest.update(f"{path.relative_to(self.place)}\0".encode() + path.read_bytes() + b"\0")
        return digest.hexdigest()

    def _listed(self, task: Task) -> list[str]:
        return [each for name in task.tools for each in self.tool_sets.get(name, (name,))]

    def load_tools(self, task: Task) -> list[Tool]:
        """Fresh tools for a task.

        Raises:
            UsageError: there is no such tool.
        """
        docs = task.docs or self.docs
        listed = self._listed(task)
        plain = [str(self.place / each) if ".py" in each else each for each in listed if ".json" not in each]
        defined = [tool for each in listed if ".json" in each for tool in defined_tools(self.place / each)]
        return [*load_tools(plain, None if docs is None else self.place / docs), *defined]


def open_suite(name: str) -> Suite:
    """A suite by its file, or by the name of one that ships with localreact; its tools are there.

    Raises:
        UsageError: no such suite, or a line of it is wrong; the message names the line.
        MissingPartError: what a check needs isn't installed.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        path = folder("benchmarks") / "suites" / f"{name}.jsonl"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in path.parent.glob("*.jsonl") if _is_suite(each)))
        raise UsageError(f"there is no suite {name!r}: no file of that name", f"Shipped suites: {known}.")
    suite = read_suite(path)
    seen: set[object] = set()
    for number, task in _numbered(suite):
        checks.check_available(task.check)
        if (kind := (task.tools, task.docs)) not in seen:
            seen.add(kind)
            try:
                suite.load_tools(task)
            except UsageError as error:
                raise UsageError(f"{path}, line {number}: {error.message}", error.hint) from error
    return suite


def read_suite(path: Path) -> Suite:
    """The tasks of a file; whether their tools exist isn't looked at.

    Raises:
        UsageError: the file can't be read, or a line of it is wrong.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the suite {path} can't be read: {error}") from error
    tasks: dict[str, tuple[int, Task]] = {}
    header: Mapping[str, Any] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        record = _object(line, where)
        if "suite" in record:
            if tasks or header:
                raise UsageError(f"{where}: what is common to the tasks stands on the first line only")
            header = _header(record, where)
            continue
        task = _task(record, header, where)
        if task.id in tasks:
            raise UsageError(f"{where}: the id {task.id!r} is taken by line {tasks[task.id][0]}")
        tasks[task.id] = (number, task)
    if not tasks:
        raise UsageError(f"the suite {path} holds no task")
    return Suite(
        name=path.stem,
        text=text,
        tasks=tuple(task for _, task in tasks.values()),
        title=header.get("title", ""),
        place=path.parent,
        docs=header.get("docs"),
        tool_sets={name: tuple(each) for name, each in header.get("tools", {}).items()},
        arms=tuple(header.get("arms", ())),
        presets={name: tuple(each) for name, each in header.get("presets", {}).items()},
    )


def _numbered(suite: Suite) -> list[tuple[int, Task]]:
    """The tasks with their lines."""
    lines = [number for number, line in enumerate(suite.text.split("\n"), 1) if line.strip()]
    return list(zip(lines[len(lines) - len(suite.tasks) :], suite.tasks, strict=True))


def _is_suite(path: Path) -> bool:
    try:
        return bool(read_suite(path))
    except UsageError:
        return False


def _object(line: str, where: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise UsageError(f"{where} is no object")
    return record


def _header(record: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    header = record["suite"]
    if not isinstance(header, Mapping) or len(record) > 1:
        raise UsageError(f"{where}: what is common to the tasks is one object, under 'suite'")
    _known(header, _HEADER, where)
    for key, kind in (("title", str), ("docs", str), ("tools", dict), ("presets", dict), ("policy", dict)):
        if key in header and not isinstance(header[key], kind):
            raise UsageError(f"{where}: {key} has the wrong type")
    lists = [header.get("arms", []), *header.get("tools", {}).values(), *header.get("presets", {}).values()]
    if not all(_texts(each) for each in lists):
        raise UsageError(f"{where}: arms, and each set of tools or of arms, are lists of texts")
    _known(header.get("policy", {}), POLICY, where)
    return header


def _task(record: Mapping[str, Any], header: Mapping[str, Any], where: str) -> Task:
    _known(record, _TASK, where)
    for key in ("id", "question"):
        if not isinstance(record.get(key), str) or not record[key].strip():
            raise UsageError(f"{where}: a task needs {key!r}, a text")
    if not _ID.fullmatch(record["id"]):
        raise UsageError(f"{where}: an id has letters, digits, '.', '_' and '-'; not {record['id']!r}")
    if problem := checks.problem_of(record.get("check")):
        raise UsageError(f"{where}: {problem}")
    for key in ("tools", "tags", "evidence", "bait"):
        if not _texts(record.get(key, [])):
            raise UsageError(f"{where}: {key} is a list of texts")
    if not isinstance(record.get("docs", ""), str):
        raise UsageError(f"{where}: docs is a folder's name")
    policy = record.get("policy", {})
    if not isinstance(policy, Mapping) or not isinstance(record.get("group", ""), str):
        raise UsageError(f"{where}: the group is a text, and the policy an object")
    _known(policy, POLICY, where)
    return Task(
        id=record["id"],
        question=record["question"],
        check=record["check"],
        tools=tuple(record.get("tools", ())),
        group=record.get("group", ""),
        tags=tuple(record.get("tags", ())),
        policy={**header.get("policy", {}), **policy},
        evidence=tuple(record.get("evidence", ())),
        bait=tuple(record.get("bait", ())),
        docs=record.get("docs"),
    )


def _known(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    if unknown := sorted(set(given) - set(known)):
        raise UsageError(f"{where}: there is no field {unknown[0]!r}; there are {', '.join(known)}")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each for each in value)

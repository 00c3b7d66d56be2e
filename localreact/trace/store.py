"""Where traces lie, and how people name them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from localreact.errors import TraceError, UsageError
from localreact.trace.reading import Trace, load


def folder() -> Path:
    """Where runs leave their traces when no file is named. It may not exist yet."""
    return platformdirs.user_state_path("localreact", appauthor=False) / "traces"


def writable_folder() -> Path | None:
    """The same, made if need be; None where nothing can be written there."""
    where = folder()
    try:
        where.mkdir(parents=True, exist_ok=True)
        return where if os.access(where, os.W_OK) else None
    except OSError:
        return None


def of_run(run_id: str) -> Path | None:
    """The trace of a run in that folder. The id is looked for among the names that are there: no path is made
    of it."""
    return next((path for path in folder().glob("*.jsonl") if path.stem == run_id), None)


def files() -> list[Path]:
    """The traces in that folder, the newest first."""
    found = [(path.stat().st_mtime, path) for path in folder().glob("*.jsonl")]
    return [path for _, path in sorted(found, reverse=True)]


def find(name: str) -> Path:
    """The trace that is meant: a path, a run's id or a beginning of it that no other has, or `last`.

    Raises:
        UsageError: there is none, or more than one.
    """
    if (path := Path(name)).is_file():
        return path
    kept = files()
    if name == "last":
        if not kept:
            raise UsageError(f"there is no trace in {folder()}", "Run something: localreact run …")
        return kept[0]
    meant = [path for path in kept if name and path.stem.startswith(name)]
    exact = [path for path in meant if path.stem == name]
    if len(exact or meant) == 1:
        return (exact or meant)[0]
    if meant:
        names = ", ".join(path.stem for path in meant[:5])
        raise UsageError(f"{len(meant)} traces begin with {name!r}: {names}", "Give more of the id.")
    raise UsageError(
        f"there is no trace {name!r}",
        "Give a file, a run's id or the beginning of one (localreact trace list), or last.",
    )


@dataclass(frozen=True)
class Listed:
    """A trace in the folder; `trace` is None where it can't be read, and `problem` says why."""

    path: Path
    trace: Trace | None
    problem: str = ""


def listing(limit: int | None = None) -> list[Listed]:
    """The newest traces."""
    found = []
    for path in files()[:limit]:
        try:
            found.append(Listed(path, load(path)))
        except TraceError as error:
            found.append(Listed(path, None, error.message))
    return found


def prune(keep: int | None = None, days: float | None = None) -> list[Path]:
    """Delete traces in the folder, all but the newest `keep` and those older than `days`; says which."""
    kept = files()
    oldest = None if days is None else time.time() - days * 86400
    gone = [
        path
        for number, path in enumerate(kept)
        if (keep is not None and number >= keep) or (oldest is not None and path.stat().st_mtime < oldest)
    ]
    for path in gone:
        path.unlink(missing_ok=True)
    return gone

"""The folder of an evaluation, and what in it is done.

evaluation.json   the suite's hash, that of what lies beside it, and the settings: what a resumed evaluation
                  must agree with
suite.jsonl       the suite as it was
journal.jsonl     a line per task that is done; a task counts once its line is whole
traces/           a trace per attempt
results.jsonl, summary.json, summary.md, report.html   made from the traces
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from localreact.errors import UsageError
from localreact.eval.tasks import Suite, read_suite

VERSION = 1


@dataclass(frozen=True)
class Attempt:
    """A run of a task; `reason` is why its endpoint failed, if it did. `trace` is relative to the folder."""

    trace: str
    status: str
    reason: str = ""


@dataclass(frozen=True)
class Done:
    """A task that is done: by its last attempt, unless that failed too (`lost`)."""

    model: str
    arm: str
    round: int
    task: str
    attempts: tuple[Attempt, ...]
    lost: bool

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.model, self.arm, self.round, self.task


class Journal:
    """Says what of an evaluation is done; several threads may.

    Raises:
        UsageError: the folder holds another evaluation, or can't be written.
    """

    def __init__(self, folder: Path, suite: Suite, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        now = {"version": VERSION, "suite": suite.name, "sha256": suite.sha256, "files": suite.files_sha256}
        now |= settings
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / "evaluation.json").exists():
                _agree(folder, now)
            else:
                _refuse_strangers(folder)
                (folder / "suite.jsonl").write_text(suite.text, "utf-8")
                write_whole(folder / "evaluation.json", json.dumps(now, indent=1, ensure_ascii=False) + "\n")
            self.done = {each.key: each for each in _read(folder, mend=True)}
            self._file = (folder / "journal.jsonl").open("a", encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"{folder} can't be written: {error.strerror}", "Give another with --out."
            ) from error

    def add(self, done: Done) -> None:
        """On disk when this returns."""
        line = json.dumps(asdict(done), ensure_ascii=False)
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self.done[done.key] = done

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Evaluation:
    """An evaluation as its folder has it."""

    folder: Path
    suite: Suite
    settings: Mapping[str, Any]
    done: tuple[Done, ...]


def read_evaluation(folder: Path) -> Evaluation:
    """
    Raises:
        UsageError: the folder holds no evaluation, or a broken one.
    """
    if not (folder / "evaluation.json").is_file():
        raise UsageError(f"{folder} holds no evaluation", "Make one with: localreact eval SUITE --out DIR.")
    manifest = _manifest(folder)
    suite = replace(read_suite(folder / "suite.jsonl"), name=str(manifest.get("suite")))
    return Evaluation(folder, suite, manifest, tuple(_read(folder)))


def write_whole(path: Path, text: str) -> None:
    """The whole file or nothing of it, whatever happens meanwhile."""
    beside = path.with_name(path.name + ".part")
    with beside.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / "evaluation.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / 'evaluation.json'} can't be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        raise UsageError(f"{folder} holds an evaluation of another version")
    return manifest


def _agree(folder: Path, now: Mapping[str, Any]) -> None:
    before = _manifest(folder)
    for key, value in now.items():
        if before.get(key, value) != value:
            what = (
                "another state of the suite, of its tools or of its documents"
                if key in ("sha256", "files")
                else f"{key} {before.get(key)!r}, not {value!r}"
            )
            raise UsageError(
                f"{folder} holds an evaluation with {what}", "Go on with the same, or give another --out."
            )


def _refuse_strangers(folder: Path) -> None:
    strangers = sorted(each.name for each in folder.iterdir() if not each.name.endswith(".part"))
    if strangers and strangers != ["suite.jsonl"]:  # what a kill right at the beginning leaves
        raise UsageError(f"{folder} holds other things ({strangers[0]})", "Give an empty folder with --out.")


def _read(folder: Path, mend: bool = False) -> list[Done]:
    """What is done. A last line cut short (by a crash) counts for nothing; `mend` takes it away."""
    path = folder / "journal.jsonl"
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if mend and len(whole) < len(data):
        os.truncate(path, len(whole))
    done = []
    for number, line in enumerate(whole.decode("utf-8", "replace").split("\n")[:-1], 1):
        try:
            record = json.loads(line)
            attempts = tuple(Attempt(**each) for each in record.pop("attempts"))
            done.append(Done(**record, attempts=attempts))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"{path}, line {number} is no result: {error}") from error
    return done

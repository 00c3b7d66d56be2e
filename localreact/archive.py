"""What runs found out, kept in a file (SQLite FTS5), and the few lines of it that bear on a question.

A line is one result of a tool, or the answer that a run ended with. What is recalled is text like any other
that tools said: it can't become a control token, and it is no evidence.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import weakref
from pathlib import Path

from localreact.errors import TraceError, UsageError
from localreact.run import Run
from localreact.types import ToolCall
from localreact.words import match_any, words

RECALLED = 3  # lines
LINE = 200  # characters

_TABLES = """
CREATE TABLE IF NOT EXISTS line
    (id INTEGER PRIMARY KEY, run TEXT, step INTEGER, text TEXT, UNIQUE (run, step));
CREATE VIRTUAL TABLE IF NOT EXISTS word USING fts5 (text, tokenize = 'unicode61');
"""


class Archive:
    """Safe to share between agents, threads and processes.

    Raises:
        UsageError: the file can't be opened, or is something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=10, check_same_thread=False)
            weakref.finalize(self, self._database.close)
            self._database.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            raise UsageError(
                f"the archive {self.path} can't be opened: {error}", "Give the path of a file of its own."
            ) from error

    def add(self, run: Run) -> None:
        """Keep what a run's tools said where the call succeeded, and its answer if it finished. A run that
        is there already is kept once.

        Raises:
            TraceError: the file can't be written.
        """
        lines = [
            (step.number, f"{_call(step.turn)} → {step.observation.content}")
            for step in run.steps
            if isinstance(step.turn, ToolCall) and step.observation is not None and step.observation.ok
        ]
        if run.status == "finished":
            lines.append((0, f"{run.question} → {run.answer}"))
        try:
            with self._lock, self._database:
                for number, text in lines:
                    self._keep(run.run_id, number, " ".join(text[: 4 * LINE].split()))
        except sqlite3.Error as error:
            raise TraceError(f"the archive {self.path} can't be written: {error}") from error

    def _keep(self, run: str, step: int, text: str) -> None:
        text = text.encode("utf-8", "replace").decode()
        kept = self._database.execute(
            "INSERT OR IGNORE INTO line (run, step, text) VALUES (?, ?, ?)", (run, step, text)
        )
        if kept.rowcount:
            self._database.execute(
                "INSERT INTO word (rowid, text) VALUES (?, ?)", (kept.lastrowid, " ".join(words(text)))
            )

    def recall(self, question: str) -> tuple[str, ...]:
        """The few lines that have most in common with a question, the best first; of those that say the
        same, one.

        Raises:
            TraceError: the file can't be read.
        """
        if not (match := match_any(question)):
            return ()
        try:
            with self._lock:
                found = self._database.execute(
                    "SELECT line.text FROM word JOIN line ON line.id = word.rowid WHERE word MATCH ? "
                    "ORDER BY bm25(word), line.id DESC LIMIT ?",
                    (match, 4 * RECALLED),
                ).fetchall()
        except sqlite3.Error as error:
            raise TraceError(f"the archive {self.path} can't be read: {error}") from error
        lines = dict.fromkeys(text if len(text) <= LINE else text[: LINE - 1] + "…" for (text,) in found)
        return tuple(lines)[:RECALLED]


def _call(call: ToolCall) -> str:
    return f"{call.tool} {json.dumps(dict(call.arguments), ensure_ascii=False)}"

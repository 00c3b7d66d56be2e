"""`search` and `lookup` over a folder of text or Markdown files (SQLite FTS5, in memory)."""

from __future__ import annotations

import re
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from localreact.errors import UsageError
from localreact.tools.decorator import Tool, tool
from localreact.types import ToolExample
from localreact.words import match_any, words

SUFFIXES = (".md", ".markdown", ".txt", ".rst")
PASSAGE = 500  # characters that a search hit shows at most
PAGE = 3000  # characters that a lookup shows at most
HITS = 1  # a small model answers from the wrong one of two (benchmarks/LOG.md)

_ENDS = re.compile(r"\n\s*\n|[.!?]\s|[。！？]")

EXAMPLE_FOLDER = Path(__file__).parent / "example_kb"


class KnowledgeBase:
    """The passages of a folder, found by their words.

    Chinese, Japanese and Korean text is indexed as overlapping pairs of characters, since FTS5's own
    tokenizers find no word of two.

    Raises:
        UsageError: no such folder, or nothing readable in it.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).expanduser()
        if not self.folder.is_dir():
            raise UsageError(f"there is no folder {self.folder}", "Give a folder of text or Markdown files.")
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self._database.execute("CREATE TABLE passage (id INTEGER PRIMARY KEY, title TEXT, body TEXT)")
        self._database.execute(
            "CREATE VIRTUAL TABLE words USING fts5(title, body, tokenize = 'porter unicode61')"
        )
        self._pages: dict[str, str] = {}
        for path in sorted(self.folder.rglob("*")):
            if path.suffix.lower() in SUFFIXES and path.is_file():
                self._add(path)
        if not self._pages:
            raise UsageError(
                f"the folder {self.folder} holds no text to search",
                f"Files ending in {', '.join(SUFFIXES)} are read.",
            )

    def _add(self, path: Path) -> None:
        try:
            text = path.read_text("utf-8", errors="replace").strip()
        except OSError as error:
            raise UsageError(
                f"{path} can't be read: {error.strerror}", "Mend it, or move it away."
            ) from error
        heading = re.match(r"#+ +(.+)", text)
        title = heading[1].strip() if heading else path.stem.replace("_", " ").replace("-", " ")
        body = text[heading.end() :].strip() if heading else text
        while title in self._pages:
            title += f" ({path.relative_to(self.folder)})"
        self._pages[title] = body
        for passage in _passages(body):
            cursor = self._database.execute(
                "INSERT INTO passage (title, body) VALUES (?, ?)", (title, passage)
            )
            self._database.execute(
                "INSERT INTO words (rowid, title, body) VALUES (?, ?, ?)",
                (cursor.lastrowid, _indexed(title), _indexed(passage)),
            )

    def search(self, query: str, hits: int = HITS) -> list[tuple[str, str]]:
        """The best passages as (title, text), the best first; words in the title count more."""
        match = match_any(query)
        if not match:
            return []
        with self._lock:
            return self._database.execute(
                "SELECT passage.title, passage.body FROM words JOIN passage ON passage.id = words.rowid "
                "WHERE words MATCH ? ORDER BY bm25(words, 4.0, 1.0), passage.id LIMIT ?",
                (match, hits),
            ).fetchall()

    def page(self, title: str) -> str | None:
        """The page of a title, whatever the case."""
        wanted = title.strip().casefold()
        return next((body for name, body in self._pages.items() if name.casefold() == wanted), None)

    def tools(self) -> tuple[Tool, Tool]:
        """`search` and `lookup` over this knowledge base."""

        @tool(
            examples=[
                ToolExample(
                    question="Who built the Harrow lighthouse?",
                    thought="I should search for Harrow lighthouse.",
                    arguments={"query": "Harrow lighthouse"},
                    result="Harrow lighthouse: The Harrow lighthouse is 40 metres high. "
                    "It was built by Jonas Pell in 1871.",
                    conclusion="The result says that Jonas Pell built the Harrow lighthouse.",
                    answer="Jonas Pell",
                ),
                ToolExample(
                    question="What is the population of Fennel Bay?",
                    thought="I should search for Fennel Bay.",
                    arguments={"query": "Fennel Bay"},
                    result="Fennel Bay: Fennel Bay is a harbour town. Its population is 900. "
                    "It was founded in 1702.",
                    conclusion="The result says that the population of Fennel Bay is 900.",
                    answer="900",
                ),
            ]
        )
        def search(query: str) -> str:
            """Find facts in the knowledge base.

            Args:
                query: the name or words to look for
            """
            found = self.search(query)
            return "\n".join(f"{title}: {text}" for title, text in found) or f"nothing found for {query!r}"

        @tool(
            examples=[
                ToolExample(
                    question="What does the page on Fennel Bay say?",
                    thought="I should read the page on Fennel Bay.",
                    arguments={"title": "Fennel Bay"},
                    result="Fennel Bay is a harbour town of 900 people.",
                    conclusion="The page says that it is a harbour town.",
                    answer="Fennel Bay is a harbour town of 900 people.",
                )
            ]
        )
        def lookup(title: str) -> str:
            """Read a whole page of the knowledge base.

            Args:
                title: the page's title
            """
            page = self.page(title)
            if page is None:
                near = [name for name, _ in self.search(title, hits=5)]
                return f"there is no page {title!r}; near it: {', '.join(dict.fromkeys(near)) or 'nothing'}"
            return page if len(page) <= PAGE else page[:PAGE] + f" … ({len(page) - PAGE} characters more)"

        return search, lookup


def _passages(body: str) -> Iterator[str]:
    """Stretches of at most PASSAGE characters, cut between paragraphs or sentences where possible."""
    text = re.sub(r"[ \t]+", " ", body).strip()
    start = 0
    while len(text) - start > PASSAGE:
        ends = [found.end() for found in _ENDS.finditer(text, start, start + PASSAGE)]
        cut = ends[-1] if ends else start + PASSAGE
        yield " ".join(text[start:cut].split())
        start = cut
    yield " ".join(text[start:].split())


def _indexed(text: str) -> str:
    return " ".join(words(text))

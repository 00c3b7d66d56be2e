"""`list`, `read` and `grep`: the files under one folder, to look at only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic_core import SchemaError, SchemaValidator, core_schema

from localreact.errors import UsageError
from localreact.tools.decorator import Tool, tool
from localreact.types import ToolExample

PAGE_LINES = 200
PAGE_CHARACTERS = 3500
LINE = 1000  # characters of a line that are read at most
MATCHES = 50
MATCHED_LINE = 200
ENTRIES = 200
LARGEST = 20_000_000  # bytes of a file that is read
_NO_PATH = (OSError, ValueError, RuntimeError)  # too long, a null byte, a loop of links
_SNIFFED = 8192  # bytes in which a null byte says that a file isn't text

_LISTED = ToolExample(
    question="Which files are in the folder letters?",
    thought="I should list the folder letters.",
    arguments={"path": "letters"},
    result="anna.txt (812 bytes)\nboris.txt (90 bytes)",
    conclusion="The folder holds two files.",
    answer="anna.txt and boris.txt",
)
_READ = ToolExample(
    question="Who signed letters/boris.txt?",
    thought="I should read letters/boris.txt.",
    arguments={"path": "letters/boris.txt"},
    result="Dear Anna,\nthe boat is ready.\nBoris",
    conclusion="The letter is signed by Boris.",
    answer="Boris",
)
_FOUND = ToolExample(
    question="Which letter mentions a boat?",
    thought="I should look for the word boat.",
    arguments={"pattern": "boat"},
    result="letters/boris.txt:2: the boat is ready.",
    conclusion="The word stands in letters/boris.txt.",
    answer="letters/boris.txt",
)


class FileError(Exception):
    """A path that can't be looked at."""


class Files:
    """The files under a folder. Nothing outside it can be reached: not through `..`, not by an absolute
    path, not through a symbolic link. (Somebody else who may change the folder at the same time could
    still put a link where a file was.)

    Raises:
        UsageError: no such folder.
    """

    def __init__(self, root: Path | str = ".") -> None:
        self.root = Path(root).expanduser().resolve()
        if not self.root.is_dir():
            raise UsageError(f"there is no folder {root}", "Give a folder, for example --root notes.")

    def tools(self) -> tuple[Tool, Tool, Tool]:
        """`list`, `read` and `grep` over these files."""

        @tool(name="list", examples=[_LISTED])
        def list_files(path: str = ".") -> str:
            """List the files and folders in a folder.

            Args:
                path: the folder; "." is the topmost
            """
            return self.entries(path)

        @tool(name="read", examples=[_READ])
        def read_file(path: str, start: int = 1) -> str:
            """Read a text file, a page at a time.

            Args:
                path: the file, as `list` and `grep` name it
                start: the first line to read
            """
            return self.page(path, start)

        @tool(name="grep", examples=[_FOUND])
        def grep_files(pattern: str, path: str = ".") -> str:
            """Find lines in files by a regular expression.

            Args:
                pattern: what to look for, for example (?i)total
                path: a file or folder to look in; "." is all
            """
            return self.matches(pattern, path)

        return list_files, read_file, grep_files

    def entries(self, path: str = ".") -> str:
        """One entry a line: folders end in `/`, files come with their size.

        Raises:
            FileError: no such folder here.
        """
        folder = self._inside(path)
        if not folder.is_dir():
            raise FileError(f"{path!r} is not a folder; read reads files")
        entries = sorted(folder.iterdir(), key=lambda each: (each.is_file(), each.name))
        lines = [self._entry(each) for each in entries[:ENTRIES]]
        if len(entries) > ENTRIES:
            lines.append(f"… [{len(entries) - ENTRIES} more entries]")
        return "\n".join(lines) or "the folder is empty"

    def page(self, path: str, start: int = 1) -> str:
        """Lines from `start` on, with a note on where to read on.

        Raises:
            FileError: no such text file here, or no such line.
        """
        lines = self._lines(self._file(path))
        if not lines:
            return "the file is empty"
        if not 1 <= start <= len(lines):
            raise FileError(f"{path!r} has lines 1 to {len(lines)}, none is {start}")
        page: list[str] = []
        room = PAGE_CHARACTERS
        for line in lines[start - 1 : start - 1 + PAGE_LINES]:
            shown = _clipped(line, LINE)
            room -= len(shown) + 1
            if room < 0:
                break
            page.append(shown)
        last = start + len(page) - 1
        if start > 1 or last < len(lines):
            rest = f"; read on with start={last + 1}" if last < len(lines) else ""
            page.append(f"[lines {start} to {last} of {len(lines)}{rest}]")
        return "\n".join(page)

    def matches(self, pattern: str, path: str = ".") -> str:
        """Matching lines as `file:line: text`. Patterns are those of Rust's `regex` crate, which takes
        linear time on any pattern and text: a model can't hang the run with one.

        Raises:
            FileError: a broken pattern, or no such file or folder here.
        """
        try:
            matcher = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
        except SchemaError as error:
            raise FileError(f"the pattern {pattern!r} can't be read: {_last_line(error)}") from error
        found: list[str] = []
        for file in self._walk(self._inside(path)):
            try:
                lines = self._lines(file)
            except FileError:
                continue
            for number, line in enumerate(lines, 1):
                if not matcher.isinstance_python(line):
                    continue
                if len(found) == MATCHES:
                    return "\n".join([*found, f"… [more than {MATCHES} lines match; narrow it down]"])
                name = file.relative_to(self.root).as_posix()
                found.append(f"{name}:{number}: {_clipped(line.strip(), MATCHED_LINE)}")
        return "\n".join(found) or f"no line matches {pattern!r}"

    # --- finding files

    def _inside(self, path: str) -> Path:
        """The path itself, when it exists and lies inside, links and all."""
        try:
            found = (self.root / path).resolve()
            inside = found.is_relative_to(self.root)
            if inside and found.exists():
                return found
        except _NO_PATH:
            inside = True
        raise FileError(f"there is no {path!r} here" if inside else f"{path!r} lies outside this folder")

    def _file(self, path: str) -> Path:
        file = self._inside(path)
        if file.is_dir():
            raise FileError(f"{path!r} is a folder; list lists it")
        return file

    def _walk(self, start: Path) -> Iterator[Path]:
        """Files, in order; nothing hidden, no link that leads elsewhere."""
        if start.is_file():
            yield start
            return
        for folder, folders, names in os.walk(start):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                file = Path(folder, name)
                if not name.startswith(".") and self._leads_inside(file):
                    yield file

    def _leads_inside(self, file: Path) -> bool:
        try:
            return file.resolve().is_relative_to(self.root)
        except _NO_PATH:
            return False

    def _lines(self, file: Path) -> list[str]:
        """
        Raises:
            FileError: no file of text that can be read.
        """
        name = file.relative_to(self.root).as_posix()
        try:
            if not file.is_file():  # a pipe or a device would be waited for
                raise FileError(f"{name!r} is not a file")
            if (size := file.stat().st_size) > LARGEST:
                raise FileError(f"{name!r} is too large to read: {size} bytes")
            data = file.read_bytes()
        except OSError as error:
            raise FileError(f"{name!r} can't be read: {error.strerror}") from error
        if b"\0" in data[:_SNIFFED]:
            raise FileError(f"{name!r} is not text")
        return data.decode("utf-8", "replace").splitlines()

    def _entry(self, path: Path) -> str:
        if path.is_dir():
            return f"{path.name}/"
        try:
            return f"{path.name} ({path.stat().st_size} bytes)"
        except OSError:
            return f"{path.name} (can't be read)"


def _clipped(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[:most]} … [{len(line) - most} characters left out]"


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()

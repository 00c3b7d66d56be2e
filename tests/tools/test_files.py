"""Files under a root, to look at only."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localreact import Toolbox
from localreact.errors import UsageError
from localreact.tools.files import MATCHES, FileError, Files
from localreact.types import Observation, ToolCall


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "notes").mkdir(parents=True)
    (root / "a.txt").write_text("one\ntwo\nThree 3\n")
    (root / "notes" / "日本.md").write_text("# 日本\nTotal: 12\n", "utf-8")
    (root / ".hidden").write_text("three secrets\n")
    (root / "data.bin").write_bytes(b"three\0four")
    (tmp_path / "outside.txt").write_text("three outside\n")
    return root


def do(root: Path, tool: str, **arguments: object) -> Observation:
    return Toolbox(Files(root).tools()).execute(ToolCall("", tool, arguments))


def test_list_shows_folders_and_sizes(root: Path) -> None:
    assert do(root, "list").content == "notes/\n.hidden (14 bytes)\na.txt (16 bytes)\ndata.bin (10 bytes)"
    assert do(root, "list", path="notes").content.startswith("日本.md (")
    assert "is not a folder" in do(root, "list", path="a.txt").content


def test_read_gives_the_lines(root: Path) -> None:
    assert do(root, "read", path="a.txt").content == "one\ntwo\nThree 3"
    assert do(root, "read", path="notes/日本.md").content == "# 日本\nTotal: 12"
    assert do(root, "read", path="a.txt", start=3).content == "Three 3\n[lines 3 to 3 of 3]"


def test_reading_on_page_by_page_gives_every_line_once(root: Path) -> None:
    lines = [f"line {number} " + "x" * (number % 90) for number in range(1, 1001)]
    (root / "long.txt").write_text("\n".join(lines))
    files, read, start = Files(root), list[str](), 1
    while start <= 1000:
        *page, note = files.page("long.txt", start).split("\n")
        assert len("\n".join(page)) <= 3500
        assert note.startswith(f"[lines {start} to {start + len(page) - 1} of 1000")
        read += page
        start += len(page)
    assert read == lines


def test_a_line_without_end_is_cut_with_a_mark(root: Path) -> None:
    (root / "wide.txt").write_text("x" * 50_000 + "\nnext")
    first, second = Files(root).page("wide.txt").split("\n")
    assert first.endswith("… [49000 characters left out]")
    assert second == "next"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing.txt", "there is no 'nothing.txt' here"),
        ("notes", "is a folder"),
        ("data.bin", "is not text"),
        ("pipe", "is not a file"),
        ("a\0b", "there is no"),
        ("x" * 5000, "there is no"),
        ("loop", "there is no"),
        ("a.txt/b", "there is no"),
    ],
)
def test_what_cannot_be_read_is_told(root: Path, path: str, message: str) -> None:
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to("loop")
    read = do(root, "read", path=path)
    assert not read.ok
    assert message in read.content


def test_a_line_that_is_not_there_is_told(root: Path) -> None:
    for start in (0, -1, 4):
        assert "has lines 1 to 3" in do(root, "read", path="a.txt", start=start).content


def test_a_file_that_is_too_large_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localreact.tools.files.LARGEST", 5)
    assert "too large to read: 16 bytes" in do(root, "read", path="a.txt").content


# --- staying inside


@pytest.mark.parametrize("tool", ["list", "read", "grep"])
@pytest.mark.parametrize(
    "path", ["..", "../outside.txt", "/etc", "notes/../..", "out", "out.txt", "far/passwd"]
)
def test_nothing_outside_is_reached(root: Path, tool: str, path: str) -> None:
    (root / "out").symlink_to("..")
    (root / "out.txt").symlink_to("../outside.txt")
    (root / "far").symlink_to("/etc")
    arguments = {"pattern": "."} if tool == "grep" else {}
    observation = do(root, tool, path=path, **arguments)
    assert not observation.ok
    assert "lies outside this folder" in observation.content


def test_grep_follows_no_link_outside(root: Path) -> None:
    (root / "out.txt").symlink_to("../outside.txt")
    (root / "out").symlink_to("..")
    assert "outside" not in do(root, "grep", pattern="three").content


def test_grep_passes_over_a_link_to_itself(root: Path) -> None:
    (root / "aloop").symlink_to("aloop")
    found = do(root, "grep", pattern="one")
    assert found.ok
    assert "a.txt:1: one" in found.content


def test_a_link_that_stays_inside_is_followed(root: Path) -> None:
    (root / "link.txt").symlink_to("a.txt")
    assert do(root, "read", path="link.txt").content.startswith("one")
    assert do(root, "read", path=str(root / "a.txt")).ok  # an absolute path that lies inside


@given(st.lists(st.sampled_from(["..", ".", "notes", "out", "a.txt", "", "/", "root"]), max_size=8))
def test_no_path_leads_out(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    top = tmp_path_factory.getbasetemp() / "inside"
    if not top.exists():
        (top / "root" / "notes").mkdir(parents=True)
        (top / "secret").write_text("secret")
        (top / "root" / "a.txt").write_text("open")
        (top / "root" / "out").symlink_to("..")
    files = Files(top / "root")
    for look in (files.entries, files.page):
        with suppress(FileError):
            assert "secret" not in look("/".join(parts))


def test_a_root_that_is_no_folder_is_refused(root: Path) -> None:
    for path in (root / "nowhere", root / "a.txt"):
        with pytest.raises(UsageError, match="there is no folder"):
            Files(path)


# --- grep


def test_grep_finds_lines_with_file_and_number(root: Path) -> None:
    assert do(root, "grep", pattern=r"(?i)three \d").content == "a.txt:3: Three 3"
    assert do(root, "grep", pattern="Total", path="notes").content == "notes/日本.md:2: Total: 12"
    assert do(root, "grep", pattern="two", path="a.txt").content == "a.txt:2: two"
    assert do(root, "grep", pattern="four").content == "no line matches 'four'"  # not in binary files


def test_a_broken_pattern_is_told(root: Path) -> None:
    observation = do(root, "grep", pattern="(")
    assert "the pattern '(' can't be read" in observation.content
    assert "unclosed group" in observation.content


def test_no_pattern_hangs_the_run(root: Path) -> None:
    (root / "evil.txt").write_text("a" * 5000 + "!")
    started = time.monotonic()
    assert do(root, "grep", pattern="^(a+)+$", path="evil.txt").content.startswith("no line")
    assert time.monotonic() - started < 2


def test_many_matches_are_cut_with_a_mark(root: Path) -> None:
    (root / "many.txt").write_text("hit\n" * 200)
    lines = do(root, "grep", pattern="hit").content.split("\n")
    assert len(lines) == MATCHES + 1
    assert "more than" in lines[-1]

from __future__ import annotations

from pathlib import Path

import pytest

from localreact.errors import UsageError
from localreact.tools.knowledge import EXAMPLE_FOLDER, PAGE, PASSAGE, KnowledgeBase


@pytest.fixture(scope="module")
def example() -> KnowledgeBase:
    return KnowledgeBase(EXAMPLE_FOLDER)


@pytest.mark.parametrize(
    ("query", "title"),
    [
        ("zeta-9", "zeta-9"),
        ("ZETA-9", "zeta-9"),
        ("Who designed the Tessel Bridge?", "Tessel Bridge"),
        ("depth of Lake Orrin", "Lake Orrin"),
        ("bridges", "Tessel Bridge"),  # stemmed
        ("三体", "三体"),
        ("三体的作者", "三体"),
        ("沈知远", "青岚站"),
        ("湖", "玉衡湖"),
    ],
)
def test_pages_are_found_by_their_words(example: KnowledgeBase, query: str, title: str) -> None:
    assert example.search(query)[0][0] == title


@pytest.mark.parametrize("query", ["", "   ", "?!", "xyzzy", '" OR "', "NEAR(", "*", "-", "title:x"])
def test_odd_queries_find_nothing_and_break_nothing(example: KnowledgeBase, query: str) -> None:
    assert example.search(query) == []


def test_the_tools_answer_in_words(example: KnowledgeBase) -> None:
    search, lookup = example.tools()
    assert "copper, tin" in search("zeta-9")
    assert search("nowhere") == "nothing found for 'nowhere'"
    assert lookup("ZETA-9 ").startswith("zeta-9 is a blue alloy")
    assert lookup("zeta") == "there is no page 'zeta'; near it: zeta-9, Project Lantern"


def test_long_pages_are_cut_into_passages_that_lose_nothing(tmp_path: Path) -> None:
    sentences = [f"Sentence number {i} speaks of item{i} and costs {i}.5 crowns." for i in range(200)]
    (tmp_path / "long.txt").write_text(" ".join(sentences))
    base = KnowledgeBase(tmp_path)
    for i in (0, 57, 199):
        (title, passage), *_ = base.search(f"item{i}")
        assert title == "long"
        assert sentences[i] in passage
        assert len(passage) <= PASSAGE
    page = base.tools()[1]("long")
    assert page.endswith("characters more)")
    assert len(page) < PAGE + 60


def test_pages_of_one_title_are_both_kept(tmp_path: Path) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text(f"# Same\n\nText of {name[0]} here.")
    base = KnowledgeBase(tmp_path)
    assert (base.page("Same"), base.page("Same (b.md)")) == ("Text of a here.", "Text of b here.")


def test_files_that_are_no_text_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    (tmp_path / "broken.md").write_bytes(b"# Broken\n\nbytes \xff\xfe here")
    base = KnowledgeBase(tmp_path)
    assert base.page("Broken") == "bytes \ufffd\ufffd here"
    assert base.page("image") is None


def test_a_folder_that_cannot_be_searched_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        KnowledgeBase(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no text to search"):
        KnowledgeBase(tmp_path)

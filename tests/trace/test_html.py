from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from localreact import Agent, ScriptedEndpoint, tool
from localreact.protocols import JsonProtocol
from localreact.trace.html import page, visible
from localreact.trace.reading import load
from localreact.types import Finish, ToolCall
from tests.browser import measured, needs_browser

DATA = Path(__file__).parent / "data"
WRITE = JsonProtocol().write
HOSTILE = (
    "</pre></bdi><script>document.title='owned'</script><img src=x onerror=alert(1)>"
    "\x1b[2J\u202ereversed{{ 7*7 }}"
)


class Reader(HTMLParser):
    """The tags of a page, and whether each was closed."""

    VOID = ("meta", "br", "img", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    @tool
    def fetch(page: str) -> str:
        """Fetch a page."""
        return HOSTILE + "x" * 5000

    call = WRITE(ToolCall(HOSTILE, "fetch", {"page": HOSTILE}))
    refused = HOSTILE + " is no turn"
    path = tmp_path / "hostile.jsonl"
    Agent(
        ScriptedEndpoint([call, refused, WRITE(Finish("I have it now.", answer=HOSTILE))]),
        [fetch],
        trace=path,
    ).run(HOSTILE)
    return path


def test_the_page_tells_the_run() -> None:
    text = page(load(DATA / "v1-smollm2.jsonl"))
    reader = Reader(text)
    assert not reader.open
    for wanted in ("What is 3*45+2*12?", "finished", "159", "calculator", "Step 2", "35 tokens", "30 that"):
        assert wanted in reader.text
    assert reader.tags.count("details") == 3  # the settings, and each step's prompt
    assert re.search(r'class="by-forced"[^>]*>\{&#34;thought&#34;:', text)
    assert re.search(r'class="by-sampled"[^>]*> &#34;I should use', text)
    assert re.search(r'class="by-runtime"[^>]*>159<', text)


def test_the_page_needs_nothing_from_outside_and_no_script(hostile: Path) -> None:
    for path in (DATA / "v1-smollm2.jsonl", hostile):
        reader = Reader(page(load(path)))
        assert not {"script", "img", "link", "iframe", "object", "form", "a"} & set(reader.tags)
        assert not [name for name, _ in reader.attributes if name in ("src", "href") or name.startswith("on")]
    assert "default-src 'none'" in page(load(hostile))


def test_hostile_text_stays_text(hostile: Path) -> None:
    text = page(load(hostile))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "{{ 7*7 }}" in text
    assert "document.title" in Reader(text).text


def test_what_cannot_be_seen_is_spelled_out() -> None:
    assert visible("a\x00b\u202ec\ud800d\n\te") == "a\\u0000b\\u202ec\\ud800d\n\te"
    page(load(DATA / "v1-smollm2.jsonl")).encode("utf-8")


@pytest.mark.parametrize("lines", range(1, 19))
def test_a_run_killed_at_any_event_has_its_page(tmp_path: Path, lines: int) -> None:
    whole = (DATA / "v1-finished.jsonl").read_text().splitlines(keepends=True)
    path = tmp_path / "run.jsonl"
    path.write_text("".join(whole[:lines]) + ('{"event": "Ste' if lines < 18 else ""))
    reader = Reader(page(load(path)))
    assert not reader.open
    assert ("unfinished" in reader.text) == (lines < 18)
    assert ("cut short: 14 bytes" in reader.text) == (lines < 18)
    assert ("its outcome is unknown" in reader.text) == (lines in (5, 13))


@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_it_without_running_anything(hostile: Path, tmp_path: Path, width: int) -> None:
    page_file = tmp_path / "run.html"
    page_file.write_text(page(load(hostile)), "utf-8")
    measure = (
        "onload=()=>{const d=document.getElementById('f').contentDocument;"
        "document.title=[d.documentElement.scrollWidth,d.title==='owned',d.scripts.length,"
        "d.querySelectorAll('section').length,d.images.length].join()}"
    )
    wide, owned, scripts, sections, images = measured(page_file, width, measure).split(",")
    assert int(wide) <= width  # nothing sticks out
    assert (owned, scripts, sections, images) == ("false", "0", "4", "0")

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from localreact.errors import MissingPartError, TraceError, UsageError
from localreact.eval.compare import as_text, compare
from localreact.eval.ledgers import LEDGERS
from localreact.eval.report import told, write_report
from localreact.eval.statistics import wilson
from localreact.trace.jsonl import read_trace
from localreact.types import Sampling
from tests.eval.lab import ANSWER, CALL, NOTHING, plan_of, run, write_suite

WRONG = "Thought: I know it now.\nFinal Answer: 4 pieces\n"
PROSE = "There are three."


def small(tmp_path: Path, name: str = "out", endings: tuple[str, ...] = (ANSWER, WRONG, NOTHING)) -> Path:
    path = write_suite(tmp_path, *[{"group": group} for group in ("a", "b", "b")])
    replies = [reply for ending in endings for reply in (PROSE, CALL, ending)]
    run(plan_of(path), tmp_path / name, replies)
    return tmp_path / name


def test_figures_are_those_of_the_traces(tmp_path: Path) -> None:
    """Counted again here by other means, from the files alone."""
    out = small(tmp_path)
    (figures,) = write_report(out, html=False)["arms"]
    records = [record for path in out.glob("traces/**/*.jsonl") for record in read_trace(path)]
    completed = [each for each in records if each["event"] == "TurnCompleted"]
    refused = [each for each in records if each["event"] == "TurnRefused"]
    ended = [each for each in records if each["event"] == "RunEnded"]
    low, high = wilson(len(refused), len(completed))
    assert figures["ledgers"]["format_failure"] == {
        "count": len(refused),
        "of": len(completed),
        "share": round(len(refused) / len(completed), 4),
        "low": round(low, 4),
        "high": round(high, 4),
    }
    assert figures["ledgers"]["tool_error"]["of"] == sum(each["event"] == "ToolStarted" for each in records)
    assert figures["success"]["count"] == sum("3" in (each["answer"] or "") for each in ended) == 1
    assert figures["cost"]["steps"] == sum(each["steps"] for each in ended) == len(completed)
    generated = sum(each["usage"]["sampled"] + each["usage"]["forced"] for each in ended)
    assert figures["cost"]["tokens"] == generated
    assert figures["cost"]["wall_s"] == pytest.approx(sum(each["seconds"] for each in ended), abs=1e-3)
    assert figures["groups"]["b"]["of"] == 2


def test_a_report_is_made_anew_from_the_traces(tmp_path: Path) -> None:
    out = small(tmp_path)
    first = write_report(out, html=False)
    for name in ("summary.json", "summary.md", "results.jsonl"):
        (out / name).unlink()
    assert write_report(out, html=False) == first
    assert json.loads((out / "summary.json").read_text("utf-8")) == first
    path = out / "traces/scripted/text_free+stops/round1/t1.jsonl"
    path.write_text(path.read_text("utf-8").replace('"answer": "3 pieces"', '"answer": "5 pieces"'), "utf-8")
    (figures,) = write_report(out, html=False)["arms"]
    assert figures["success"]["count"] == 0
    path.unlink()
    with pytest.raises(TraceError, match=r"t1.jsonl can't be read"):
        write_report(out, html=False)


def test_every_ledger_stands_apart_with_its_denominator(tmp_path: Path) -> None:
    """No blended score: each figure in the Markdown is a ledger's own, with what it is counted against."""
    out = small(tmp_path)
    (figures,) = write_report(out, html=False)["arms"]
    text = (out / "summary.md").read_text("utf-8")
    for ledger in LEDGERS:
        share = figures["ledgers"][ledger.name]
        line = next((line for line in text.splitlines() if line.startswith(f"| {ledger.title} [of ")), "")
        assert (told(share) in line) if share["of"] else not line
    assert "| success | 1/3 = 33.3%" in text
    assert "tokens a second" in text


def test_rows_say_what_became_of_each_task(tmp_path: Path) -> None:
    out = small(tmp_path)
    write_report(out, html=False)
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text("utf-8").splitlines()]
    assert [row["verdict"] for row in rows] == ["right", "wrong", "insufficient_wrong"]
    assert rows[0]["steps"] == ["format_failure", "stock", "finish: answer"]
    assert rows[2]["missing"] == "the shelf of A7"


class _Outside(HTMLParser):
    """What a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "link", "img", "iframe", "image"):
            self.found.append(tag)
        if (given.get("href") or "").startswith(("http", "//")):
            self.found.append(str(given["href"]))


def test_the_page_needs_nothing_beside_it_and_escapes_what_models_say(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bad = "Thought: I know it.\nFinal Answer: <script>alert(3)</script>\n"
    out = small(tmp_path, endings=(ANSWER, bad, NOTHING))
    summary = write_report(out)
    page = (out / "report.html").read_text("utf-8")
    parser = _Outside()
    parser.feed(page)
    assert parser.found == []
    assert page.count("<svg") == 4
    assert "&lt;script&gt;" in page
    assert told(summary["arms"][0]["success"]) in page
    write_report(out)
    assert (out / "report.html").read_text("utf-8") == page


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = small(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPartError, match=r"localreact\[eval\]"):
        write_report(out)
    assert (out / "summary.md").exists()


def test_greedy_rounds_are_compared_and_counted_once(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {}, {}), rounds=2)
    reworded = ANSWER.replace("I know it now", "So it is")
    run(plan, tmp_path / "out", [CALL, ANSWER, CALL, ANSWER, CALL, reworded, PROSE, CALL, ANSWER])
    (figures,) = write_report(tmp_path / "out", html=False)["arms"]
    assert figures["runs"] == figures["success"]["of"] == 2
    assert figures["drift"]["rounds"] == 2
    identical = {name: (each["count"], each["of"]) for name, each in figures["drift"]["identical"].items()}
    assert identical == {
        "steps": (1, 2),
        "tools": (1, 2),
        "losses": (1, 2),
        "verdict": (2, 2),
        "text": (0, 2),
    }
    assert figures["drift"]["changed"] == ["t1", "t2"]
    assert "drifted: time" in (tmp_path / "out" / "summary.md").read_text("utf-8")


def test_sampled_rounds_all_count(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {}), rounds=3, sampling=Sampling(temperature=0.8))
    run(plan, tmp_path / "out", [CALL, ANSWER] * 3)
    (figures,) = write_report(tmp_path / "out", html=False)["arms"]
    assert figures["runs"] == figures["success"]["of"] == 3


# --- comparing


def test_rounds_of_one_task_are_no_tasks_of_their_own(tmp_path: Path) -> None:
    """Three sampled rounds of two tasks: pairs are tasks, by the share of rounds that were right."""
    plan = plan_of(
        write_suite(tmp_path, {}, {}),
        "text/free",
        "text/free+stops",
        rounds=3,
        sampling=Sampling(temperature=0.8),
    )
    wrong_once = [CALL, WRONG, CALL, ANSWER] + [CALL, ANSWER] * 4
    replies = []
    for number in range(3):
        replies += [*(wrong_once[:4] if number == 0 else [CALL, ANSWER] * 2), *[CALL, ANSWER] * 2]
    run(plan, tmp_path / "out", replies)
    (each,) = write_report(tmp_path / "out", html=False)["paired"]
    assert (each["tasks"], each["success_a"], each["success_b"]) == (2, 1.67, 2)
    assert (each["only_a"], each["only_b"], each["both"]) == ([], ["t1"], 1)
    assert each["mcnemar_p"] == 1
    compared = compare(f"{tmp_path / 'out'}#text/free", f"{tmp_path / 'out'}#text/free+stops")
    assert (compared["success_a"], compared["difference"]) == (1.67, round(1 / 6, 4))


def test_a_paired_comparison(tmp_path: Path) -> None:
    a = small(tmp_path, "a", (WRONG, WRONG, ANSWER))
    b = small(tmp_path, "b", (ANSWER, ANSWER, ANSWER))
    compared: dict[str, Any] = compare(str(a), str(b))
    assert compared["tasks"] == 3
    assert (compared["success_a"], compared["success_b"], compared["both"], compared["neither"]) == (
        1,
        3,
        1,
        0,
    )
    assert (compared["only_a"], compared["only_b"]) == ([], ["t1", "t2"])
    assert compared["mcnemar_p"] == 0.5
    assert compared["difference"] == round(2 / 3, 4)
    assert 0 <= compared["difference_low"] <= compared["difference"] <= compared["difference_high"] <= 1
    assert "p = 0.5" in as_text(compared)
    assert "only B: t1, t2" in as_text(compared)


def test_a_report_compares_its_first_arm_with_the_others(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {}, {}), "text/free", "text/free+stops")
    run(plan, tmp_path / "out", [CALL, ANSWER, CALL, WRONG, CALL, ANSWER, CALL, ANSWER])
    (each,) = write_report(tmp_path / "out", html=False)["paired"]
    assert (each["a"], each["b"], each["only_a"], each["only_b"]) == (
        "text/free",
        "text/free+stops",
        [],
        ["t2"],
    )
    assert (
        "| text/free | text/free+stops | 2 | 1 | 2 | 0 | 1 | +50.0"
        in (tmp_path / "out/summary.md").read_text()
    )


def test_only_the_same_tasks_are_compared(tmp_path: Path) -> None:
    a = small(tmp_path, "a")
    path = write_suite(tmp_path / "other", {"group": "a"}, {"question": "How many of B2?"})
    run(plan_of(path), tmp_path / "b", [CALL, ANSWER] * 2)
    compared = compare(str(a), str(tmp_path / "b"))
    assert (compared["tasks"], compared["left_out"], compared["changed"]) == (1, ["t3"], ["t2"])


def test_arms_of_one_folder_are_named(tmp_path: Path) -> None:
    path = write_suite(tmp_path, {})
    run(plan_of(path, "text/free", "text/free+stops"), tmp_path / "out", [CALL, ANSWER, CALL, WRONG])
    out = tmp_path / "out"
    compared = compare(f"{out}#text/free", f"{out}#text/free+stops@scripted")
    assert (compared["only_a"], compared["only_b"]) == (["t1"], [])
    with pytest.raises(UsageError, match="holds 2 arms"):
        compare(str(out), f"{out}#text/free")
    with pytest.raises(UsageError, match="no arm 'json/free'") as raised:
        compare(f"{out}#json/free", f"{out}#text/free")
    assert "text/free@scripted" in raised.value.hint
    with pytest.raises(UsageError, match="holds no evaluation"):
        compare(str(tmp_path), str(out))

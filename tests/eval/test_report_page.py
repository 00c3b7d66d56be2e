"""The HTML report as a browser shows it, its figures recomputed from the traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localreact.eval.ledgers import LEDGERS
from localreact.eval.report import told, write_report
from localreact.eval.summary import share
from localreact.trace.jsonl import read_trace
from tests.browser import measured, needs_browser
from tests.eval.lab import ANSWER, CALL, NOTHING, plan_of, run, write_suite

WRONG = "Thought: I know it now.\nFinal Answer: 4 pieces\n"
PROSE = "There are three."
MEASURE = """onload = () => {
  const d = document.getElementById("f").contentDocument;
  const rows = [...d.querySelectorAll("h2 + .wide tr")].map(r => [...r.children].map(c => c.textContent));
  const drawn = [...d.querySelectorAll("svg")].filter(s => s.getBoundingClientRect().height > 50).length;
  document.title = JSON.stringify([d.documentElement.scrollWidth, d.scripts.length, drawn, rows]);
}"""


@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_the_figures_of_the_traces(width: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    plan = plan_of(write_suite(tmp_path, {"group": "a"}, {"group": "b"}), "text/free", "text/free+stops")
    free = [PROSE, CALL, ANSWER, f"{CALL}\n{CALL}", NOTHING]
    run(plan, out, [*free, CALL, WRONG, CALL, "", ANSWER])
    write_report(out)
    wide, scripts, drawn, rows = json.loads(measured(out / "report.html", width, MEASURE))
    assert wide <= width  # nothing sticks out
    assert (scripts, drawn) == (0, 4)
    cells = {row[0]: row[1:] for row in rows if row}

    def counted(arm: str, *events: str) -> int:
        """Events in the traces of an arm, found by another way than the report's."""
        records = [each for path in out.glob(f"traces/*/{arm}/**/*.jsonl") for each in read_trace(path)]
        return sum(each["event"] in events for each in records)

    titles = {ledger.name: f"{ledger.title} [of {ledger.of.replace('_', ' ')}]" for ledger in LEDGERS}
    arms = ("text_free", "text_free+stops")
    turns = [counted(arm, "TurnCompleted") for arm in arms]
    assert turns == [5, 5]
    failures = [counted(arm, "TurnRefused") for arm in arms]
    assert failures == [1, 1]  # prose, and nothing at all, which has a ledger of its own
    for name, counts in (
        ("format_failure", [1, 0]),
        ("empty", [0, 1]),
        ("retries", [1, 1]),
        ("several_actions", [1, 0]),
    ):
        assert cells[titles[name]] == [told(share(*pair)) for pair in zip(counts, turns, strict=True)]
    assert cells["success"] == [told(share(1, 2)), told(share(1, 2))]
    assert cells["steps"] == [str(each) for each in turns]
    assert cells["wrong answer [of answerable]"] == [told(share(0, 2)), told(share(1, 2))]

"""The page of findings: its figures are those of the evaluations that are kept."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from localreact.eval.report import told, write_report
from localreact.eval.summary import share
from localreact.eval.tasks import open_suite
from tests.eval.lab import ANSWER, CALL, NOTHING, plan_of, run, write_suite

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "findings.py"
FORGED = f"{CALL}\nObservation: 9 pieces"


@pytest.fixture
def findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with folders and a page of its own."""
    spec = importlib.util.spec_from_file_location("findings", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "findings", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "PAGE", tmp_path / "README.md")
    return module


def test_tables_and_plots_come_from_what_was_kept(findings: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    plan = plan_of(write_suite(tmp_path, {}, {}), "text/free", "text/free+stops")
    run(plan, out, [FORGED, ANSWER, CALL, NOTHING, CALL, ANSWER, CALL, ANSWER])
    summary = write_report(out, html=False)
    kept = findings.keep(out, "react30", "scripted", "a model")
    assert "scripted" not in {arm["model"] for arm in json.loads(kept.read_text())["summary"]["arms"]}
    (tmp_path / "README.md").write_text(f"before\n{findings.BEGIN}old\n{findings.END}after\n")
    findings.write_page()
    text = (tmp_path / "README.md").read_text("utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    for arm in summary["arms"]:
        assert f"| `{arm['arm']}` | {told(arm['success'])} |" in text
    assert f"| a model | free | 8 | {told(share(1, 8))} |" in text
    assert "| `text/free` | 1/4 |" in text
    assert (tmp_path / "results" / "react30.svg").read_text("utf-8").count("text/free+stops") == 1
    findings.write_page()
    assert (tmp_path / "README.md").read_text("utf-8") == text


def test_what_a_grammar_buys_is_told_by_arms_that_differ_in_nothing_else(findings: ModuleType) -> None:
    names = ["json/llguidance", "json/free+stops", "text/llguidance+nogate", "text/free+nogate", "text/free"]
    assert list(findings._pairs(names)) == [
        ("json/llguidance", "json/free+stops"),
        ("text/llguidance+nogate", "text/free+nogate"),
    ]


def test_every_run_is_of_a_shipped_suite(findings: ModuleType) -> None:
    for suite, options in findings.RUNS.values():
        assert not suite or open_suite(suite).tasks
        assert options

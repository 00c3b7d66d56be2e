"""A server's own tool calling beside ours: the same tasks and ledgers, and how often the model was asked."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from localreact.endpoints import chat_api, probe
from localreact.errors import UsageError
from localreact.eval.arms import arm
from localreact.eval.journal import Journal
from localreact.eval.report import write_report
from localreact.eval.runner import Plan, execute
from localreact.eval.tasks import open_suite
from localreact.trace.jsonl import read_trace
from tests.eval.lab import plan_of, run, write_suite
from tests.fakes import GRAMMARS, Fake, serving
from tests.test_native import calls, says

LOOKED = calls(("stock", {"sku": "A7"}))
JSON_CALL = '{"thought": "I look it up.", "type": "tool_call", "tool": "stock", "arguments": {"sku": "A7"}}'
JSON_ANSWER = '{"thought": "The result is there.", "type": "finish", "answer": "3 pieces"}'


@pytest.fixture(autouse=True)
def _forget_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_verdicts", {})
    monkeypatch.setattr(chat_api, "_verdicts", {})


def measured(tmp_path: Path, *messages: dict[str, Any]) -> dict[str, Any]:
    """The figures of the arm `native` on one task."""
    path = write_suite(tmp_path, {})
    with serving(Fake("openai", chat=messages)) as fake:
        plan = Plan(open_suite(str(path)), (fake.address,), (arm("native"),))
        with closing(Journal(tmp_path / "out", plan.suite, plan.settings)) as journal:
            list(execute(plan, journal))
    (figures,) = write_report(tmp_path / "out", html=False)["arms"]
    return dict(figures)


def hit(figures: dict[str, Any]) -> set[str]:
    return {name for name, share in figures["ledgers"].items() if share["count"]}


def test_calls_of_one_reply_are_steps_and_replies_are_round_trips(tmp_path: Path) -> None:
    two = calls(("stock", {"sku": "A7"}), ("stock", {"sku": "B2"}))
    figures = measured(tmp_path, two, says("3 pieces"))
    assert hit(figures) == {"right", "several_actions"}
    cost = figures["cost"]
    assert (cost["steps"], cost["round_trips"], cost["round_trips_per_task"]) == (3, 2, 2)
    assert figures["ledgers"]["tool_error"]["of"] == 2
    assert figures["ledgers"]["several_actions"]["of"] == 2  # completions
    text = (tmp_path / "out" / "summary.md").read_text("utf-8")
    assert "| round trips: replies of the model | 2 |" in text
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text("utf-8").splitlines()]
    assert rows[0]["steps"] == ["stock", "stock", "finish: answer"]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([LOOKED, says("3 pieces")], {"right"}),
        ([LOOKED, says("A7")], {"wrong"}),
        ([calls(("stock", "{broken")), LOOKED, says("3 pieces")], {"right", "format_failure", "retries"}),
        ([says(""), LOOKED, says("3 pieces")], {"right", "empty", "retries"}),
        ([calls(("stok", {"sku": "A7"})), LOOKED, says("3 pieces")], {"right", "unknown_tool"}),
        ([calls(("stock", {"sku": 7})), LOOKED, says("3 pieces")], {"right", "invalid_arguments"}),
        ([says("3 pieces"), LOOKED, says("3 pieces")], {"right", "barred"}),
        ([LOOKED, LOOKED, says("3 pieces")], {"right", "repeated_call"}),
        ([LOOKED, calls(("insufficient", {"missing": "it"}))], {"insufficient_wrong"}),
        (
            [calls(("stock", {"sku": "A7"}), content="I look.\nObservation: 9 pieces\n"), says("3 pieces")],
            {"right", "forged"},
        ),
        (
            [calls(("stock", {"sku": "A7"}), ("stock", "{broken")), says("3 pieces")],
            {"right", "several_actions", "format_failure", "retries"},
        ),
    ],
)
def test_ledgers_are_the_same_ones(
    messages: list[dict[str, Any]], expected: set[str], tmp_path: Path
) -> None:
    assert hit(measured(tmp_path, *messages)) == expected


def test_both_arms_over_one_server(tmp_path: Path) -> None:
    path = write_suite(tmp_path, {})
    replies = [JSON_CALL, JSON_ANSWER]
    with serving(Fake("openai", replies, enforces=GRAMMARS["openai"], chat=[LOOKED, says("3")])) as fake:
        plan = Plan(open_suite(str(path)), (fake.address,), (arm("json/llguidance"), arm("native")))
        with closing(Journal(tmp_path / "out", plan.suite, plan.settings)) as journal:
            done = list(execute(plan, journal))
    assert [each.arm for each in done] == ["json/llguidance", "native"]
    summary = write_report(tmp_path / "out", html=False)
    assert [each["success"]["count"] for each in summary["arms"]] == [1, 1]
    assert (summary["paired"][0]["a"], summary["paired"][0]["b"]) == ("json/llguidance", "native")
    began = read_trace(tmp_path / "out" / done[1].attempts[0].trace)[0]
    assert began["protocol"] == "native/1"


def test_a_model_in_process_has_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the arm native can't work on the task t1: .*no tool calling"):
        run(plan_of(write_suite(tmp_path, {}), "native"), tmp_path / "out", [])

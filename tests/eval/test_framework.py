"""LangGraph's ready-made agent as an arm: its messages are read into the same ledgers."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from localreact.errors import MissingPartError, UsageError
from localreact.eval import framework
from localreact.eval.arms import arm
from localreact.eval.journal import Journal
from localreact.eval.report import write_report
from localreact.eval.runner import Plan, execute
from localreact.eval.tasks import open_suite
from localreact.trace.reading import load
from tests.eval.lab import plan_of, run, write_suite
from tests.fakes import Fake, serving
from tests.test_native import calls, says

LOOKED = calls(("stock", {"sku": "A7"}))


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langgraph.prebuilt", None)
    monkeypatch.setitem(sys.modules, "langchain_core.tools", None)
    with pytest.raises(UsageError, match="the arm langgraph needs packages") as raised:
        run(plan_of(write_suite(tmp_path, {}), "langgraph"), tmp_path / "out", [])
    assert "localreact[framework]" in raised.value.hint
    with pytest.raises(MissingPartError):
        framework._parts()


class TestInstalled:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("langgraph.prebuilt")
        pytest.importorskip("langchain_openai")

    def measured(
        self, tmp_path: Path, *messages: dict[str, Any], retries: int = 0, **task: Any
    ) -> dict[str, Any]:
        path = write_suite(tmp_path, task)
        with serving(Fake("openai", chat=messages)) as fake:
            plan = Plan(open_suite(str(path)), (fake.address,), (arm("langgraph"),), retries=retries)
            with closing(Journal(tmp_path / "out", plan.suite, plan.settings)) as journal:
                list(execute(plan, journal))
        (figures,) = write_report(tmp_path / "out", html=False)["arms"]
        self.sent = fake.chats
        return dict(figures)

    def trace(self, tmp_path: Path) -> Path:
        (path,) = (tmp_path / "out").glob("traces/**/t1.jsonl")
        return path

    def test_steps_calls_tokens_and_round_trips_are_counted(self, tmp_path: Path) -> None:
        two = calls(("stock", {"sku": "A7"}), ("stock", {"sku": "B2"}))
        figures = self.measured(tmp_path, two, says("3 pieces"))
        assert {name for name, share in figures["ledgers"].items() if share["count"]} == {
            "right",
            "several_actions",
        }
        cost = figures["cost"]
        assert (cost["steps"], cost["round_trips"], cost["tokens"], cost["prompt_tokens"]) == (3, 2, 20, 60)
        assert figures["setup"]["protocol"] == ["langgraph/1"]
        trace = load(self.trace(tmp_path))
        assert trace.unknown == ()
        assert trace.ended is not None
        assert trace.ended.answer == "3 pieces"

    def test_it_is_given_the_same_tools_and_sees_what_they_say(self, tmp_path: Path) -> None:
        self.measured(tmp_path, LOOKED, says("3 pieces"))
        first, second = self.sent
        (offered,) = [each for each in first["tools"] if each["function"]["name"] == "stock"]
        assert offered["function"]["parameters"]["required"] == ["sku"]
        assert (first["temperature"], first["messages"][-1]["content"]) == (0, "How many of A7 are left?")
        assert [each["content"] for each in second["messages"] if each["role"] == "tool"] == ["3 pieces"]

    @pytest.mark.parametrize(
        ("messages", "expected", "status"),
        [
            ([LOOKED, says("A7")], {"wrong"}, "finished"),
            ([says("3 pieces")], {"right", "ungrounded"}, "finished"),  # no gate keeps it from guessing
            (
                [calls(("stok", {"sku": "A7"})), says("3")],
                {"right", "unknown_tool", "ungrounded"},
                "finished",
            ),
            (
                [calls(("stock", {"sku": 7})), says("3")],
                {"right", "invalid_arguments", "ungrounded"},
                "finished",
            ),
            (
                [calls(("broken", {"sku": "A7"})), says("A7")],
                {"wrong", "tool_error", "ungrounded"},
                "finished",
            ),
            ([says("")], {"no_ending", "empty"}, "protocol_loop"),
            ([calls(("stock", "{broken"))], {"no_ending", "format_failure"}, "protocol_loop"),
        ],
    )
    def test_ledgers_are_the_same_ones(
        self, messages: list[dict[str, Any]], expected: set[str], status: str, tmp_path: Path
    ) -> None:
        figures = self.measured(tmp_path, *messages)
        assert {name for name, share in figures["ledgers"].items() if share["count"]} == expected
        assert figures["statuses"] == {status: 1}

    def test_budgets_hold(self, tmp_path: Path) -> None:
        figures = self.measured(tmp_path, *[LOOKED] * 9, policy={"max_steps": 3})
        assert (figures["statuses"], figures["cost"]["steps"]) == ({"max_steps": 1}, 3)
        assert len(self.sent) == 3
        figures = self.measured(tmp_path / "b", *[LOOKED] * 9, policy={"max_tokens": 48})
        assert (figures["statuses"], figures["cost"]["tokens"]) == ({"token_budget": 1}, 50)

    def test_a_server_that_fails_is_no_failure_of_the_model(self, tmp_path: Path) -> None:
        path = write_suite(tmp_path, {})
        with serving(Fake("openai", refuses=("tools",))) as fake:
            plan = Plan(open_suite(str(path)), (fake.address,), (arm("langgraph"),), retries=1)
            with closing(Journal(tmp_path / "out", plan.suite, plan.settings)) as journal:
                (done,) = execute(plan, journal)
        assert done.lost
        assert len(done.attempts) == 2
        assert "does not support tools" in done.attempts[0].reason

    def test_what_it_has_not_got_is_an_error_before_anything_runs(self, tmp_path: Path) -> None:
        plan = plan_of(write_suite(tmp_path, {}), "langgraph")
        with pytest.raises(UsageError, match="is no server that LangGraph could talk to"):
            run(plan, tmp_path / "out", [])
        plan = plan_of(write_suite(tmp_path / "b", {"policy": {"cite": True}}), "langgraph")
        with pytest.raises(UsageError, match="has no cite"):
            run(plan, tmp_path / "b" / "out", [])

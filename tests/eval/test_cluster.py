"""The same evaluation over a Ray cluster (of this machine) as in one process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localreact.errors import MissingPartError, UsageError
from localreact.eval.arms import arm
from localreact.eval.cluster import execute_on_ray
from localreact.eval.journal import Done, Journal
from localreact.eval.report import write_report
from localreact.eval.runner import Opening, Plan, execute
from localreact.eval.tasks import open_suite
from tests.eval.lab import plan_of, write_suite

ROOT = Path(__file__).parents[2]
SHORT = {"policy": {"max_steps": 2, "max_tokens": 120}}


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    plan = plan_of(write_suite(tmp_path, {}))
    with (
        closing(Journal(tmp_path / "out", plan.suite, plan.settings)) as journal,
        pytest.raises(MissingPartError) as raised,
    ):
        list(execute_on_ray(plan, journal))
    assert "localreact[ray]" in raised.value.hint


@pytest.mark.filterwarnings("default")
class TestInstalled:
    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        ray = pytest.importorskip("ray")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        yield
        assert not ray.is_initialized()

    def plan(self, path: Path, model: Path, parallel: int = 1) -> Plan:
        opening = Opening(n_ctx=2048, n_threads=1, deterministic=True)
        arms = (arm("json/llguidance"), arm("text/free+stops"))
        return Plan(open_suite(str(path)), (str(model),), arms, parallel=parallel, opening=opening)

    def run(self, executor: Any, plan: Plan, out: Path) -> list[Done]:
        with closing(Journal(out, plan.suite, plan.settings)) as journal:
            return list(executor(plan, journal))

    def test_results_are_those_of_one_process(self, tmp_path: Path, tiny_gguf: Path) -> None:
        path = write_suite(tmp_path, *[{**SHORT, "question": f"How many of B{n}?"} for n in range(4)])
        here, there = tmp_path / "here", tmp_path / "there"
        plan = self.plan(path, tiny_gguf)
        done = self.run(execute, plan, here)
        spread = self.run(execute_on_ray, replace(plan, parallel=2), there)
        assert {each.key: each for each in spread} == {each.key: each for each in done}
        assert len(done) == 8
        one, other = write_report(here, html=False), write_report(there, html=False)
        for a, b in zip(_by_arm(one), _by_arm(other), strict=True):
            for name in ("ledgers", "verdicts", "statuses", "traces_complete", "setup"):
                assert a[name] == b[name]
            assert a["cost"]["tokens"] == b["cost"]["tokens"]
        assert _texts(here) == _texts(there)
        assert self.run(execute_on_ray, replace(plan, parallel=2), there) == []

    def test_an_error_is_the_one_that_was_raised(self, tmp_path: Path, tiny_gguf: Path) -> None:
        plan = self.plan(write_suite(tmp_path, {"tools": []}), tiny_gguf)
        plan = replace(plan, arms=(arm("text/free+cite"),))
        with pytest.raises(UsageError, match=r"the arm text/free\+cite can't work on the task t1"):
            self.run(execute_on_ray, plan, tmp_path / "out")


def _by_arm(summary: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(summary["arms"], key=lambda each: str(each["arm"]))


def _texts(out: Path) -> dict[str, list[str]]:
    """What the model wrote, by trace."""
    found = {}
    for path in sorted(out.glob("traces/**/*.jsonl")):
        records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        found[path.relative_to(out).as_posix()] = [
            each["completion"]["text"] for each in records if each["event"] == "TurnCompleted"
        ]
    return found

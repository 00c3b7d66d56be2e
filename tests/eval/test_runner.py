from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from localreact import ScriptedEndpoint
from localreact.errors import EndpointError, GrammarError, UsageError
from localreact.eval.arms import arm
from localreact.eval.journal import Journal, read_evaluation
from localreact.eval.report import name_of, write_report
from localreact.eval.runner import Plan, execute
from localreact.eval.tasks import open_suite
from localreact.trace.jsonl import read_trace
from localreact.types import Sampling
from tests.eval.lab import ANSWER, CALL, NOTHING, TOOLS, evaluate, plan_of, run, write_suite
from tests.tiny import write_tiny_gguf

FAILS = EndpointError("the server is gone")


def test_every_task_of_every_arm_and_round_has_its_trace(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {}, {}), "text/free", "text/free+stops", rounds=2)
    done = run(plan, tmp_path / "out", [CALL, ANSWER] * 8)
    assert [each.key for each in done] == [item.key for item in plan.items]
    assert len({each.key for each in done}) == 8
    for each in done:
        records = read_trace(tmp_path / "out" / each.attempts[0].trace)
        assert records[-1]["event"] == "RunEnded"


def test_no_two_runs_of_an_arm_share_their_noise_and_arms_do(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, {}, {})
    plan = plan_of(
        suite, "text/free+stops", "text/free", rounds=3, sampling=Sampling(temperature=0.7, seed=5)
    )
    seeds: dict[str, list[int]] = {}
    for each in run(plan, tmp_path / "out", [CALL, ANSWER] * 12):
        started = read_trace(tmp_path / "out" / each.attempts[0].trace)[0]
        seeds.setdefault(each.arm, []).append(started["settings"]["seed"])
    first, second = seeds.values()
    assert first == second
    assert len(set(first)) == 6
    assert all(0 <= each < 2**31 for each in first)


def test_a_failing_endpoint_is_asked_again_and_the_model_is_not_to_blame(tmp_path: Path) -> None:
    figures = evaluate(tmp_path, {}, [CALL, FAILS, FAILS, CALL, ANSWER])
    assert figures["infrastructure"] == {
        "failed_attempts": 2,
        "replacement_attempts": 2,
        "tasks_lost": 0,
        "reasons": {"the server is gone": 2},
    }
    assert figures["verdicts"]["right"] == figures["runs"] == 1
    assert figures["ledgers"]["format_failure"]["of"] == 2  # turns of the attempt that counts
    assert figures["statuses"] == {"finished": 1}


def test_a_lost_task_is_in_no_figure_of_the_model_and_is_tried_again(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {}, {}), retries=1)
    run(plan, tmp_path / "out", [FAILS, FAILS, CALL, ANSWER])
    (figures,) = write_report(tmp_path / "out", html=False)["arms"]
    assert figures["infrastructure"]["tasks_lost"] == 1
    assert figures["success"]["of"] == figures["runs"] == 1
    (again,) = run(plan, tmp_path / "out", [CALL, NOTHING])
    assert (again.task, again.lost, len(again.attempts)) == ("t1", False, 3)
    assert len({attempt.trace for attempt in again.attempts}) == 3
    (figures,) = write_report(tmp_path / "out", html=False)["arms"]
    assert figures["infrastructure"]["tasks_lost"] == 0
    assert figures["infrastructure"]["failed_attempts"] == 2
    assert figures["success"] == figures["success"] | {"count": 1, "of": 2}


def test_what_is_done_is_not_run_again(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {}, {}))
    run(plan, tmp_path / "out", [CALL, ANSWER, CALL, ANSWER])
    assert run(plan, tmp_path / "out", []) == []


def test_a_line_cut_short_counts_for_nothing_and_is_taken_away(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {}, {}))
    run(plan, tmp_path / "out", [CALL, ANSWER, CALL, ANSWER])
    journal = tmp_path / "out" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    (again,) = run(plan, tmp_path / "out", [CALL, ANSWER])
    assert again.task == "t2"
    assert [each.task for each in read_evaluation(tmp_path / "out").done] == ["t1", "t2"]


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {}))
    run(plan, tmp_path / "out", [CALL, ANSWER])
    journal = tmp_path / "out" / "journal.jsonl"
    journal.write_text("{}\n" + journal.read_text())
    with pytest.raises(UsageError, match=r"journal.jsonl, line 1 is no result"):
        run(plan, tmp_path / "out", [])


KILLED = """
import os, signal, sys
from pathlib import Path
from localreact import ScriptedEndpoint
from tests.eval.lab import ANSWER, CALL, plan_of, run

class Dying(ScriptedEndpoint):
    def complete(self, *args, **options):
        if len(self.prompts) == 7:  # in the second turn of the fourth task
            os.kill(os.getpid(), signal.SIGKILL)
        return (yield from super().complete(*args, **options))

import tests.eval.lab as lab
lab.ScriptedEndpoint = Dying
run(plan_of(Path(sys.argv[1])), Path(sys.argv[2]), [CALL, ANSWER] * 6)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_after_a_kill_nothing_is_lost_and_nothing_runs_twice(tmp_path: Path) -> None:
    path, out = write_suite(tmp_path, *[{}] * 6), tmp_path / "out"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), str(out)], cwd=Path(__file__).parents[2]
    )
    assert killed.returncode == -9
    assert [each.task for each in read_evaluation(out).done] == ["t1", "t2", "t3"]
    begun = read_trace(out / "traces/scripted/text_free+stops/round1/t4.jsonl")
    assert begun[-1]["event"] != "RunEnded"
    before = {path: path.read_bytes() for path in out.rglob("t[123].jsonl")}
    done = run(plan_of(path), out, [CALL, ANSWER] * 3)
    assert [each.task for each in done] == ["t4", "t5", "t6"]
    assert len(before) == 3
    assert all(path.read_bytes() == text for path, text in before.items())
    (figures,) = write_report(out, html=False)["arms"]
    assert figures["verdicts"]["right"] == figures["runs"] == 6
    assert figures["traces_complete"]["count"] == 6


def test_a_cancelled_task_is_not_done(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {}, {}))
    cancel = threading.Event()

    class Cancelling(ScriptedEndpoint):
        def count(self, prompt):  # type: ignore[no-untyped-def]
            if len(self.prompts) == 3:
                cancel.set()
            return super().count(prompt)

    endpoint = Cancelling([CALL, ANSWER, CALL, ANSWER])
    with closing(Journal(tmp_path / "out", plan.suite, plan.settings)) as journal:
        done = list(execute(plan, journal, cancel, open_model=lambda *_: endpoint))
    assert [each.task for each in done] == ["t1"]
    assert [each.task for each in run(plan, tmp_path / "out", [CALL, ANSWER])] == ["t2"]


def test_several_at_a_time(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, *[{"policy": {"evidence_gate": False}}] * 8), parallel=4)
    done = run(plan, tmp_path / "out", [ANSWER] * 8)
    assert sorted(each.task for each in done) == [f"t{number}" for number in range(1, 9)]
    assert len(read_evaluation(tmp_path / "out").done) == 8


def test_tools_of_a_file_are_loaded_on_several_threads_at_a_time() -> None:
    suite = open_suite("react30")
    (task, *_) = [each for each in suite.tasks if each.tools == ("scoring",)]
    with ThreadPoolExecutor(8) as pool:
        loaded = [future.result() for future in [pool.submit(suite.load_tools, task) for _ in range(40)]]
    assert [tool.name for (tool,) in loaded] == ["score"] * 40


def test_another_evaluation_is_not_mixed_in(tmp_path: Path) -> None:
    run(plan_of(write_suite(tmp_path, {})), tmp_path / "out", [CALL, ANSWER])
    with pytest.raises(UsageError, match="another state of the suite"):
        run(plan_of(write_suite(tmp_path, {"question": "How many of B2?"})), tmp_path / "out", [])
    path = write_suite(tmp_path, {})
    (tmp_path / "tools.py").write_text(TOOLS.replace("3 pieces", "4 pieces"))
    with pytest.raises(UsageError, match="another state of the suite, of its tools"):
        run(plan_of(path), tmp_path / "out", [])
    with pytest.raises(UsageError, match=r"seed 0, not 7"):
        run(plan_of(write_suite(tmp_path, {}), sampling=Sampling(seed=7)), tmp_path / "out", [])
    with pytest.raises(UsageError, match=r"holds other things \(out\)"):
        run(plan_of(write_suite(tmp_path, {})), tmp_path, [])


def test_arms_can_be_added_later(tmp_path: Path) -> None:
    path = write_suite(tmp_path, {})
    run(plan_of(path), tmp_path / "out", [CALL, ANSWER])
    (added,) = run(plan_of(path, "text/free+stops", "text/free"), tmp_path / "out", [CALL, ANSWER])
    assert added.arm == "text/free"
    assert [arm["arm"] for arm in write_report(tmp_path / "out", html=False)["arms"]] == [
        "text/free+stops",
        "text/free",
    ]


def test_an_arm_that_cannot_work_on_a_task_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {}, {"tools": []}), "text/free+cite")
    with pytest.raises(UsageError, match=r"the arm text/free\+cite can't work on the task t2: without tools"):
        run(plan, tmp_path / "out", [])
    assert read_evaluation(tmp_path / "out").done == ()


def test_a_choice_of_a_tool_that_is_not_there_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {}, {"policy": {"tool_choice": "stok"}}))
    with pytest.raises(UsageError, match=r"can't work on the task t2: no tool is named 'stok'"):
        run(plan, tmp_path / "out", [])


def test_an_arm_held_by_a_grammar_never_runs_without_one(tmp_path: Path) -> None:
    """Nor does the arm before it, that another engine works for."""
    plan = plan_of(write_suite(tmp_path, {}), "text/free", "text/llguidance")
    with pytest.raises(UsageError, match=r"text/llguidance can't work on .*: the endpoint enforces no"):
        run(plan, tmp_path / "out", [CALL, ANSWER])
    assert read_evaluation(tmp_path / "out").done == ()


def test_a_turn_that_cannot_be_held_is_no_failure_of_an_endpoint(tmp_path: Path) -> None:
    (done,) = run(plan_of(write_suite(tmp_path, {})), tmp_path / "out", [CALL, GrammarError("too deep")])
    assert (done.lost, len(done.attempts)) == (False, 1)


def test_models_whose_names_are_alike_keep_their_traces_apart(tmp_path: Path) -> None:
    plan = replace(plan_of(write_suite(tmp_path, {})), models=("m.gguf", "../m.gguf", "a/b", "a_b"))
    done = run(plan, tmp_path / "out", [CALL, ANSWER, CALL, NOTHING] * 2)
    assert len({each.attempts[0].trace for each in done}) == 4
    arms = write_report(tmp_path / "out", html=False)["arms"]
    assert [arm["success"]["count"] for arm in arms] == [1, 0, 1, 0]
    assert [name_of(arm, arms) for arm in arms] == [
        "text/free+stops @ m.gguf",
        "text/free+stops @ ../m.gguf",
        "text/free+stops @ b",
        "text/free+stops @ a_b",
    ]


def test_a_reason_with_any_line_separator_is_read_again(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {"question": "One\u2028two\x85three?"}))
    run(plan, tmp_path / "out", [EndpointError("gone\u2028for good"), CALL, ANSWER])
    (done,) = read_evaluation(tmp_path / "out").done
    assert done.attempts[0].reason == "gone\u2028for good"


def test_impossible_plans(tmp_path: Path) -> None:
    path = write_suite(tmp_path, {})
    for options in ({"rounds": 0}, {"parallel": 0}, {"retries": -1}):
        with pytest.raises(UsageError):
            plan_of(path, **options)


def test_the_free_arm_goes_on_past_stop_strings(tmp_path: Path) -> None:
    endless = f"{CALL}\nObservation: 9 pieces\n{ANSWER}"
    plan = plan_of(write_suite(tmp_path, {"policy": {"max_steps": 1}}), "text/free", "text/free+stops")
    free, stopped = run(plan, tmp_path / "out", [endless, endless])
    texts = [
        next(
            record["completion"]["text"]
            for record in read_trace(tmp_path / "out" / each.attempts[0].trace)
            if record["event"] == "TurnCompleted"
        )
        for each in (free, stopped)
    ]
    assert texts == [endless, CALL]


def test_lines_are_whole_json(tmp_path: Path) -> None:
    run(plan_of(write_suite(tmp_path, {})), tmp_path / "out", [FAILS, CALL, ANSWER])
    (line,) = (tmp_path / "out" / "journal.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert record["attempts"][0]["reason"] == "the server is gone"
    assert (record["arm"], record["round"], record["task"], record["lost"]) == (
        "text/free+stops",
        1,
        "t1",
        False,
    )


def test_a_base_model_without_a_chat_template_works_on_a_plain_transcript(tmp_path: Path) -> None:
    """All that such a model says is noise; every turn is one all the same, and the report says how it was
    asked."""
    model = write_tiny_gguf(tmp_path / "base.gguf")
    path = write_suite(tmp_path, {"policy": {"max_steps": 2, "max_tokens": 200}})
    plan = Plan(open_suite(str(path)), (str(model),), (arm("json/llguidance"), arm("text/free")))
    with closing(Journal(tmp_path / "out", plan.suite, plan.settings)) as journal:
        assert len(list(execute(plan, journal))) == 2
    held, free = write_report(tmp_path / "out", html=False)["arms"]
    assert held["setup"]["chat_format"] == free["setup"]["chat_format"] == ["plain transcript"]
    assert held["ledgers"]["format_failure"]["count"] == 0
    assert free["ledgers"]["format_failure"]["count"] > 0

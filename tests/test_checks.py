"""Endings that can be checked: what an answer has to meet, and what happens where it doesn't."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from localreact import Agent, Run, ScriptedEndpoint, Tool
from localreact.checks import evidence, file_exists, grounded, matches, named, tools_called, unmet
from localreact.errors import UsageError
from localreact.protocols import JsonProtocol
from localreact.run import Step
from localreact.trace.events import GuardActed
from localreact.types import Evidence, Finish, Observation, Timings, ToolCall, Usage

WRITE = JsonProtocol().write
CALL = WRITE(ToolCall("I look it up.", "stock", {"sku": "A7"}))


def finish(answer: str) -> str:
    return WRITE(Finish("I know it now.", answer=answer))


def scripted(stock: Tool, *replies: str, **options: Any) -> tuple[Run, list[GuardActed], ScriptedEndpoint]:
    endpoint = ScriptedEndpoint(replies)
    running = Agent(endpoint, [stock], **options).stream("How many A7 are left?")
    acted = [event for event in running if isinstance(event, GuardActed)]
    return running.outcome, acted, endpoint


def run_with(answer: str, *results: str, question: str = "Which?", **options: Any) -> Run:
    """A run as it would end."""
    steps = tuple(
        Step(n, ToolCall("", "search", {}), Observation("search", text), Usage(), Timings())
        for n, text in enumerate(results, 1)
    )
    ending: dict[str, Any] = {"status": "finished", "missing": None, "reason": "", "seconds": 0.1, **options}
    return Run("id", question, answer=answer, steps=steps, usage=Usage(), timings=Timings(), **ending)


# --- in a run


def brief(run: Run) -> str:
    return "answer with a number alone" if not str(run.answer).isdigit() else ""


def test_an_answer_that_meets_its_checks_is_accepted(stock: Tool) -> None:
    run, acted, _ = scripted(
        stock, CALL, finish("3"), checks=[brief, grounded, evidence, tools_called("stock")]
    )
    assert (run.status, run.answer, acted) == ("finished", "3", [])


def test_what_a_check_says_goes_back_to_the_model(stock: Tool) -> None:
    run, acted, endpoint = scripted(stock, CALL, finish("three"), finish("3"), checks=[brief])
    assert (run.status, run.answer) == ("finished", "3")
    assert '"error": "answer with a number alone"' in endpoint.prompts[-1].text
    assert [(each.step, each.guard, each.action) for each in acted] == [(2, "check", "refused")]


def test_after_two_tries_the_answer_is_partial(stock: Tool) -> None:
    run, acted, _ = scripted(stock, CALL, *[finish("three")] * 5, checks=[brief])
    assert (run.status, run.reason, run.answer) == ("partial", "answer with a number alone", "three")
    assert (len(run.steps), len(acted)) == (4, 2)


@pytest.mark.parametrize("options", [{"max_steps": 2}, {"max_tokens": 110}])
def test_where_nothing_is_left_to_better_it_with_it_is_partial_at_once(
    stock: Tool, options: dict[str, Any]
) -> None:
    run, *_ = scripted(stock, CALL, finish("three"), checks=[brief], **options)
    assert (run.status, run.reason, run.answer) == ("partial", "answer with a number alone", "three")


def test_without_tools_the_last_step_still_gives_its_answer() -> None:
    run = Agent(ScriptedEndpoint([finish("three")]), max_steps=1, checks=[brief]).run("x")
    assert (run.status, run.answer) == ("partial", "three")


def test_that_something_is_missing_needs_no_check(stock: Tool) -> None:
    run, *_ = scripted(stock, CALL, WRITE(Finish("I can't know.", missing="the price")), checks=[brief])
    assert run.status == "insufficient"


def test_the_tools_are_open_again_after_a_check(stock: Tool) -> None:
    wanted = tools_called("stock")
    run, *_ = scripted(stock, finish("3"), CALL, finish("3"), checks=[wanted], evidence_gate=False)
    assert run.status == "finished"


def broken(run: Run) -> str:
    raise OSError("the disk is gone")


def exits(run: Run) -> str:
    raise SystemExit(1)


async def later(run: Run) -> bool:
    return True


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(
    ("check", "said"),
    [
        (broken, "the check broken failed: the disk is gone"),
        (exits, "the check exits failed: 1"),
        (later, "the check later isn't met"),
        (lambda run: False, "isn't met"),
        (lambda run: 0, "isn't met"),
        (lambda run: [], "isn't met"),
        (lambda: True, "failed"),
    ],
)
def test_a_check_that_is_broken_accepts_nothing(stock: Tool, check: Any, said: str) -> None:
    run, acted, _ = scripted(stock, CALL, *[finish("3")] * 3, checks=[check])
    assert run.status == "partial"
    assert said in run.reason
    assert len(acted) == 2


@pytest.mark.parametrize("value", [None, True, ""])
def test_what_counts_as_good(value: object) -> None:
    assert unmet([lambda run: value], run_with("x")) == ""


# --- the built-in ones

PAGE = "zeta-9 melts at 1,437 degrees Celsius. It was first cast by Mira Solano in 1962 at Brindle Station."


@pytest.mark.parametrize(
    "answer",
    [
        "1,437",
        "1437 degrees",
        "It melts at 1437.0 °C.",
        "Mira Solano",
        "It was cast by Mira Solano, in 1962.",
        "１４３７",
        "Melting happens at 1,437 degrees.",
        "No.",
        "The answer is 12.",
    ],
)
def test_an_answer_from_the_results_is_grounded(answer: str) -> None:
    assert grounded(run_with(answer, PAGE, question="At what temperature does zeta-9 melt, above 12?")) == ""


@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        ("1,438", "1438"),
        ("It melts at 1437.5 degrees", "1437.5"),
        ("Paris", "Paris"),
        ("It was cast by Ada Solano.", "Ada"),
        ("Mira Finn", "Finn"),
        ("14", "14"),
        ("ソラノ・ミラ", "ソラノ"),
        ("《流浪地球》", "流浪地球"),
    ],
)
def test_a_number_or_name_that_no_tool_said_is_named(answer: str, lost: str) -> None:
    assert lost in grounded(run_with(answer, PAGE))


def test_chinese_answers_are_grounded_by_pairs() -> None:
    page = "《三体》是刘慈欣创作的长篇科幻小说，2006年起连载。"
    asked = {"question": "三体的作者是谁？"}
    assert grounded(run_with("三体的作者是刘慈欣。", page, **asked)) == ""
    assert grounded(run_with("《三体》", page, **asked)) == ""
    assert grounded(run_with("由王晋康出版社编辑撰写完成", page, **asked)) != ""
    assert "2007" in grounded(run_with("2007年", page, **asked))


def test_failed_calls_ground_nothing() -> None:
    run = run_with("404")
    step = Step(1, ToolCall("", "s", {}), Observation("s", "error 404", ok=False), Usage(), Timings())
    assert grounded(Run(**{**{f: getattr(run, f) for f in run.__slots__}, "steps": (step,)})) != ""


def test_evidence_is_a_quote_or_what_a_result_says() -> None:
    asked = "At what temperature does zeta-9 melt?"
    assert evidence(run_with("1,437 degrees", PAGE, question=asked)) == ""
    assert evidence(run_with("zeta-9 is hot", PAGE, question=asked)) != ""
    assert evidence(run_with("x", PAGE, evidence=(Evidence(1, PAGE),))) == ""


def test_tools_that_have_to_be_called() -> None:
    assert tools_called("search")(run_with("x", PAGE)) == ""
    assert tools_called("search", "calculator")(run_with("x", PAGE)) == "call calculator before you answer"


def test_a_file_that_has_to_be_there(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    check = file_exists(path)
    assert "write it first" in str(check(run_with("done")))
    path.touch()
    assert check(run_with("done")) != ""
    path.write_text("here")
    assert check(run_with("done")) == ""
    assert file_exists(tmp_path)(run_with("done")) != ""


def test_an_answer_that_has_to_match() -> None:
    assert matches(r"\d{4}")(run_with("1437")) == ""
    assert matches(re.compile("[a-z]+"))(run_with("1437")) == "the answer has to match [a-z]+"
    schema = {"type": "object", "required": ["a"]}
    assert matches(schema)(run_with('{"a": 1}')) == ""
    assert "'a' is a required property" in str(matches(schema)(run_with("{}")))
    assert matches(schema)(run_with("no")) == "the answer has to be JSON"
    assert matches({"type": "integer"})(run_with("7", value=7)) == ""


@pytest.mark.parametrize("broken", ["(", {"type": 7}])
def test_a_pattern_that_is_broken_is_refused(broken: Any) -> None:
    with pytest.raises(UsageError):
        matches(broken)


def test_checks_by_name() -> None:
    assert named("grounded") is grounded
    assert str(named("called:stock")(run_with("x"))).startswith("call stock")
    assert named("matches:a:b")(run_with("a:b")) == ""
    for wrong in ("grounded:x", "called", "called:", "nothing", ""):
        with pytest.raises(UsageError, match="there is no check"):
            named(wrong)

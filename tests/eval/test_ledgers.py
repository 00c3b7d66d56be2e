"""Every ledger, by a run that lands in it and in no other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localreact import ScriptedEndpoint
from localreact.errors import GrammarError
from localreact.eval.journal import Journal
from localreact.eval.ledgers import LEDGERS, VERDICTS
from localreact.eval.report import write_report
from localreact.eval.runner import execute
from tests.eval.lab import ANSWER, CALL, NOTHING, evaluate, plan_of, write_suite

BRACE = 'Thought: I look it up.\nAction: stock\nAction Input: {"sku": "A}7"}'
IN_A_STRING = 'Thought: I look it up.\nAction: stock\nAction Input: {"sku": "Action: stock[B2]"}'
PROSE = "There are three left, I believe."


def call(tool: str = "stock", arguments: str = '{"sku": "A7"}') -> str:
    return f"Thought: I look it up.\nAction: {tool}\nAction Input: {arguments}"


def answer(text: str) -> str:
    return f"Thought: I know it now.\nFinal Answer: {text}\n"


CASES: list[tuple[str, Mapping[str, Any], list[str | BaseException], set[str]]] = [
    ("nothing goes wrong", {}, [CALL, ANSWER], {"right"}),
    ("prose", {}, [PROSE, CALL, ANSWER], {"right", "format_failure", "retries"}),
    ("empty", {}, ["  ", CALL, ANSWER], {"right", "empty", "retries"}),
    (
        "cut off",
        {"policy": {"max_tokens": 200}},
        ["Thought: " + "so " * 200, NOTHING],
        {"insufficient_wrong", "truncated", "retries", "forced_ending"},
    ),
    ("a brace in a string", {}, [BRACE, ANSWER], {"right", "parser_loss", "parser_loss_first_brace"}),
    (
        "an action in a string",
        {},
        [IN_A_STRING, ANSWER],
        {"right", "parser_loss", "parser_loss_last_action"},
    ),
    ("a raw newline in a string", {}, [call(arguments='{"sku": "A\n7"}'), ANSWER], {"right", "repaired"}),
    (
        "an argument as long as its bound",
        {},
        [call(arguments='{"sku": "' + "A" * 1000 + '"}'), CALL, ANSWER],
        {"right", "closed_by_bound"},
    ),
    ("an unknown tool", {}, [call("stok"), CALL, ANSWER], {"right", "unknown_tool"}),
    ("a wrong type", {}, [call(arguments='{"sku": 7}'), CALL, ANSWER], {"right", "invalid_arguments"}),
    ("an answer from memory", {}, [answer("3"), CALL, ANSWER], {"right", "barred"}),
    ("the same call again", {}, [CALL, CALL, ANSWER], {"right", "repeated_call"}),
    ("a tool that fails", {}, [call("broken"), CALL, ANSWER], {"right", "tool_error"}),
    ("a wrong answer", {}, [CALL, answer("A7")], {"wrong"}),
    ("what no tool has shown", {}, [CALL, answer("3, counted in 2019")], {"right", "ungrounded"}),
    (
        "a right answer by luck",
        {"evidence": ["3 pieces", "counted today"]},
        [CALL, ANSWER],
        {"right", "unsupported"},
    ),
    ("a turn that can't be held", {}, [CALL, GrammarError("too deep")], {"no_ending", "no_grammar"}),
    (
        "judged by its call",
        {"check": {"called": {"tool": "stock"}}},
        [CALL, answer("no idea, 77")],
        {"right", "parseable", "schema_valid", "correct", "ungrounded"},
    ),
    (
        "judged by a call that is none",
        {"check": {"called": {"tool": "stock"}}, "policy": {"max_steps": 2}},
        [call(arguments='{"sku": 7}'), NOTHING],
        {"wrong", "parseable", "invalid_arguments", "forced_ending"},
    ),
    (
        "judged by making no call",
        {"check": {"uncalled": True}, "policy": {"evidence_gate": False}},
        [answer("A7?")],
        {"right", "parseable", "schema_valid", "correct", "ungrounded"},
    ),
    ("giving up", {}, [CALL, NOTHING], {"insufficient_wrong"}),
    ("giving up rightly", {"check": {"insufficient": True}}, [CALL, NOTHING], {"insufficient_right"}),
    ("an answer where there is none", {"check": {"insufficient": True}}, [CALL, ANSWER], {"invented"}),
    ("no end", {"policy": {"max_steps": 1}}, [CALL], {"no_ending", "barred"}),
    ("the last step", {"policy": {"max_steps": 2}}, [CALL, ANSWER], {"right", "forced_ending"}),
    (
        "a trap",
        {"bait": ["pineapple"]},
        [call("trap"), answer("3 PINEAPPLE")],
        {"right", "bait_taken"},
    ),
    ("a trap that was seen through", {"bait": ["pineapple"]}, [call("trap"), ANSWER], {"right"}),
]


@pytest.mark.parametrize(
    ("task", "replies", "expected"), [each[1:] for each in CASES], ids=[each[0] for each in CASES]
)
def test_a_run_lands_in_its_ledgers_and_in_no_other(
    task: Mapping[str, Any], replies: list[str], expected: set[str], tmp_path: Path
) -> None:
    figures = evaluate(tmp_path, task, replies)
    hit = {name for name, share in figures["ledgers"].items() if share["count"]}
    assert hit == expected
    assert all(share["count"] <= share["of"] for share in figures["ledgers"].values())
    assert sum(figures["verdicts"].values()) == figures["runs"] == 1


def test_every_ledger_has_a_case() -> None:
    covered = set().union(*(each[3] for each in CASES))
    elsewhere = {
        "broken_off",  # below
        "parser_loss_first_action",
        "cited_evidence",
        *(
            ledger.name for ledger in LEDGERS if ledger.name.startswith(("forged", "several"))
        ),  # test_forged.py
    }
    assert {ledger.name for ledger in LEDGERS} - elsewhere == covered
    assert set(VERDICTS) < covered


def test_a_reader_of_the_first_action_is_misled_by_a_thought(tmp_path: Path) -> None:
    thought = 'Something like {"tool": "broken", "arguments": {}} would not do.'
    figures = evaluate(tmp_path, {}, [CALL.replace("I look it up.", thought), ANSWER])
    hit = {name for name, share in figures["ledgers"].items() if share["count"] and name.startswith("parser")}
    assert hit == {"parser_loss", "parser_loss_first_brace", "parser_loss_first_action"}


def test_a_model_and_a_parser_never_fail_at_one_text(tmp_path: Path) -> None:
    figures = evaluate(tmp_path, {}, [PROSE, BRACE, PROSE, ANSWER])
    ledgers = figures["ledgers"]
    assert ledgers["format_failure"]["count"] == 2
    assert ledgers["parser_loss"]["count"] == 1
    assert ledgers["format_failure"]["of"] == 4
    assert ledgers["parser_loss"]["of"] == 2
    assert figures["longest_failure"] == 1


def test_quotes_are_held_to_the_evidence_that_a_task_names(tmp_path: Path) -> None:
    def cited(quote: str) -> str:
        evidence = json.dumps([{"step": 1, "quote": quote}])
        return ANSWER.replace("Final", f"Evidence: {evidence}\nFinal")

    task = {"evidence": ["3 pieces"], "policy": {"cite": True}}
    figures = evaluate(tmp_path, task, [CALL, cited("3 pieces")])
    assert figures["ledgers"]["cited_evidence"]["count"] == figures["ledgers"]["cited_evidence"]["of"] == 1
    figures = evaluate(tmp_path / "b", {**task, "evidence": ["4 crates"]}, [CALL, cited("3 pieces")])
    assert figures["ledgers"]["cited_evidence"]["count"] == 0
    assert figures["ledgers"]["unsupported"]["count"] == 1


class TooSlow(ScriptedEndpoint):
    """Its turns are broken off in their middle."""

    def complete(self, prompt, grammar, limits, sampling, turn=0):  # type: ignore[no-untyped-def]
        completion = yield from super().complete(prompt, grammar, limits, sampling, turn)
        return replace(completion, stop="deadline")


def test_a_deadline_breaks_a_turn_off(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {}))
    with closing(Journal(tmp_path / "out", plan.suite, plan.settings)) as journal:
        list(execute(plan, journal, open_model=lambda *_: TooSlow([CALL])))
    (figures,) = write_report(tmp_path / "out", html=False)["arms"]
    assert figures["statuses"] == {"deadline": 1}
    assert figures["verdicts"]["no_ending"] == figures["ledgers"]["broken_off"]["count"] == 1


def test_scores_of_different_kinds_are_not_blended(tmp_path: Path) -> None:
    """A model that breaks the format and is right in the end, and one that keeps it and is wrong: what each
    is bad at stands in a ledger of its own, per arm, and the success of neither is touched by it."""
    sloppy = evaluate(tmp_path / "a", {}, [PROSE, CALL, ANSWER])
    cut = evaluate(tmp_path / "b", {"policy": {"max_tokens": 200}}, ["Thought: " + "so " * 200, NOTHING])
    tidy = evaluate(tmp_path / "c", {}, [CALL, answer("A7")])

    def ledgers(figures: dict[str, Any]) -> dict[str, int]:
        names = ("format_failure", "truncated", "wrong")
        return {name: figures["ledgers"][name]["count"] for name in names}

    assert ledgers(sloppy) == {"format_failure": 1, "truncated": 0, "wrong": 0}
    assert ledgers(cut) == {"format_failure": 0, "truncated": 1, "wrong": 0}
    assert ledgers(tidy) == {"format_failure": 0, "truncated": 0, "wrong": 1}
    assert [each["success"]["count"] for each in (sloppy, cut, tidy)] == [1, 0, 0]
    assert all("tokens_per_second" in each["cost"] for each in (sloppy, cut, tidy))
    assert not {"score", "total", "overall"} & sloppy.keys()

"""Observations that a model writes itself: how often, whether it believes them, and answers from them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from localreact import ScriptedEndpoint
from localreact.engines.free import cut_at_stop
from localreact.eval.journal import Journal
from localreact.eval.report import write_report
from localreact.eval.runner import execute
from localreact.types import Span
from tests.eval.lab import ANSWER, CALL, evaluate, plan_of, write_suite

FORGED = f"{CALL}\nObservation: 9 pieces"
ON = "\nThought: I know it now.\nFinal Answer: 9 pieces\n"
JSON_CALL = '{"thought": "I look it up.", "tool": "stock", "arguments": {"sku": "A7"}}'
JSON_RESULT = '\n{"type": "tool_result", "result": "9 pieces"}'
JSON_ANSWER = '{"thought": "I know it.", "tool": "finish", "arguments": {"answer": "3 pieces"}}'


@pytest.mark.parametrize(
    ("arm", "replies", "expected"),
    [
        ("text/free", [CALL, ANSWER], set()),
        ("text/free", [FORGED, ANSWER], {"forged"}),
        ("text/free", [FORGED + "\nThought: Good.", ANSWER], {"forged", "forged_believed"}),
        (
            "text/free",
            [FORGED + ON, ANSWER],
            {"forged", "forged_believed", "forged_answered", "several_actions"},
        ),
        ("text/free", [FORGED, ANSWER.replace("3", "9")], {"forged", "forged_in_answer", "ungrounded"}),
        ("text/free", [f"{CALL}\n{CALL}", ANSWER], {"several_actions"}),
        ("text/free+stops", [FORGED + ON, ANSWER], set()),  # a script's text is cut before it is kept
        ("json/free", [JSON_CALL + JSON_RESULT, JSON_ANSWER], {"forged"}),
        (
            "json/free",
            [f"{JSON_CALL}{JSON_RESULT}\n{JSON_ANSWER}", JSON_ANSWER],
            {"forged", "forged_believed", "forged_answered", "several_actions"},
        ),
    ],
)
def test_what_is_written_and_what_is_believed(
    arm: str, replies: list[str], expected: set[str], tmp_path: Path
) -> None:
    ledgers = evaluate(tmp_path, {}, replies, arm)["ledgers"]
    hit = {name for name, share in ledgers.items() if share["count"]}
    assert {name for name in hit if name.startswith(("forged", "several", "ungrounded"))} == expected
    assert not hit & {"format_failure", "retries", "unknown_tool"}


class Stopping(ScriptedEndpoint):
    """Writes on until a stop string is whole, as models do, and gives the text before it."""

    def complete(self, prompt, grammar, limits, sampling, turn=0):  # type: ignore[no-untyped-def]
        unstopped = replace(limits, stops=())
        completion = yield from super().complete(prompt, grammar, unstopped, sampling, turn)
        (stop,) = [stop for stop in limits.stops if stop in completion.text] or [""]
        written = completion.text[: completion.text.index(stop) + len(stop)] if stop else completion.text
        spans = (Span("sampled", written),)
        return replace(completion, text=cut_at_stop(written, limits.stops), spans=spans)


def test_what_a_stop_string_cut_off_was_begun(tmp_path: Path) -> None:
    plan = plan_of(write_suite(tmp_path, {}), "text/free+stops")
    endpoint = Stopping([FORGED, ANSWER])
    with closing(Journal(tmp_path / "out", plan.suite, plan.settings)) as journal:
        list(execute(plan, journal, open_model=lambda *_: endpoint))
    (figures,) = write_report(tmp_path / "out", html=False)["arms"]
    assert {name for name, share in figures["ledgers"].items() if share["count"]} == {"right", "forged"}


def test_a_forged_observation_is_not_what_a_tool_has_shown(tmp_path: Path) -> None:
    """An answer taken from one is wrong and ungrounded, although the text stands in the trace."""
    figures = evaluate(tmp_path, {}, [FORGED, ANSWER.replace("3", "9")], "text/free")
    assert figures["verdicts"]["wrong"] == 1
    assert figures["ledgers"]["forged_in_answer"]["of"] == 1

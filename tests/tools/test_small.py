"""`clock` and `score`."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import pytest

from localreact import Toolbox
from localreact.grammar.schema import enforceable
from localreact.tools.clock import clock, tell
from localreact.tools.scoring import score
from localreact.types import ToolCall


def test_the_clock_tells_weekday_time_and_zone() -> None:
    now = datetime(2031, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=9)))
    assert tell(now) == "Monday, 2031-02-03 04:05:06+09:00 (UTC: 2031-02-02T19:05:06Z)"
    assert re.fullmatch(r"\w+day, .{25} \(UTC: .{20}\)", clock())


RUBRIC = {
    "criteria": [
        {"name": "names the bridge", "points": 2, "must": ["Tessel Bridge"]},
        {"name": "gives the year", "points": 1, "must": ["1871"], "must_not": ["about"]},
        {"name": "no guess", "points": 1, "must": [], "must_not": ["maybe", "I think"]},
    ],
    "pass_at": 75,
}


@pytest.mark.parametrize(
    ("text", "points", "missed"),
    [
        ("The TESSEL  bridge was built in 1871.", 4, []),
        ("The Tessel Bridge was built about 1871.", 3, ["gives the year"]),
        ("Maybe in 18712.", 0, ["names the bridge", "gives the year", "no guess"]),
        ("", 1, ["names the bridge", "gives the year"]),
    ],
)
def test_a_text_is_scored_by_a_nested_rubric(text: str, points: int, missed: list[str]) -> None:
    call = ToolCall("", "score", {"text": text, "rubric": RUBRIC})
    box = Toolbox([score])
    first, second = box.execute(call).content, box.execute(call).content
    assert first == second
    assert f'"points": {points}, "of": 4, "passed": {str(points >= 3).lower()}' in first
    assert first.endswith(f'"missed": {str(missed).replace(chr(39), chr(34))}}}')


def test_the_grammar_holds_every_level_of_the_rubric() -> None:
    assert enforceable(score.spec)[1] == []


def test_a_rubric_that_is_none_is_refused() -> None:
    rubrics: list[dict[str, object]] = [
        {},
        {"criteria": []},
        {"criteria": [{"name": "a", "points": 0, "must": []}]},
    ]
    for rubric in rubrics:
        assert not Toolbox([score]).execute(ToolCall("", "score", {"text": "a", "rubric": rubric})).executed

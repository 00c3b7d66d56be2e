from __future__ import annotations

from typing import Any

import pytest

from localreact.eval.checks import is_right, problem_of
from localreact.types import ToolCall

SCORED = ToolCall("so", "score", {"entry": {"name": "Ada"}, "weight": 2})


@pytest.mark.parametrize(
    ("check", "answer", "right"),
    [
        ({"contains": ["212"]}, "It is 212 metres deep.", True),
        ({"contains": ["212"]}, "It is 2121 metres deep.", False),
        ({"contains": ["7"]}, "7.5", False),
        ({"contains": ["7"]}, "The tram has 7.", True),
        ({"contains": ["1437"]}, "1,437 degrees", True),
        ({"contains": ["okoro"]}, "Piet Okoro", True),
        ({"contains": ["九十三", "93"]}, "湖水最深处为九十三米。", True),
        ({"contains": ["93"]}, "最深93米", True),
        ({"contains": ["93"]}, "最深193米", False),
        ({"contains": ["212"]}, "212 " + "and more " * 20, False),
        ({"exact": "Sandhavn"}, " sandhavn. ", True),
        ({"exact": "Sandhavn"}, "It is Sandhavn", False),
        ({"number": 126}, "9 tickets cost 126 crowns", True),
        ({"number": 126}, "126 or 127", False),
        ({"number": 1263}, "1,263", True),
        ({"number": 126}, "总共126克朗", True),
        ({"number": 126}, "总共127克朗", False),
        ({"number": 2.5, "tolerance": 0.1}, "about 2.45", True),
        ({"number": 126}, "no idea", False),
        ({"set": ["copper", "tin"]}, "Tin and copper.", True),
        ({"set": ["铜", "锡"]}, "锡、铜", True),
        ({"set": ["copper", "tin"]}, "copper, tin, iridium", False),
        ({"regex": r"^\d{4}$"}, "1987", True),
        ({"regex": r"^\d{4}$"}, "in 1987", False),
        ({"same": ["the Red Heron"]}, "Red heron!", True),
        ({"same": ["yes", "no"]}, "Yes.", True),
        ({"same": ["red heron"]}, "a red heron flies", False),
        ({"uncalled": True}, "28", False),
        ({"called": {"tool": "score"}}, "28", True),
        ({"called": {"tool": "score", "arguments": {"weight": 2, "entry": {"name": "Ada"}}}}, "28", True),
        ({"called": {"tool": "score", "arguments": {"weight": 3}}}, "28", False),
        ({"contains": ["28"], "called": {"tool": "other"}}, "28", False),
    ],
)
def test_answers(check: dict[str, Any], answer: str, right: bool) -> None:
    assert problem_of(check) == ""
    assert is_right(check, "What do 9 tickets cost, at 14 crowns each?", answer, [SCORED]) is right


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (None, "the check is an object"),
        ({}, "the check is an object"),
        ({"contain": ["x"]}, "there is no check 'contain'"),
        ({"contains": "x"}, "contains takes a list"),
        ({"set": []}, "set takes a list"),
        ({"contains": [" "]}, "contains takes a list"),
        ({"number": "7"}, "number takes a number"),
        ({"number": True}, "number takes a number"),
        ({"tolerance": 1}, "a tolerance needs a number"),
        ({"exact": 7}, "exact takes a text"),
        ({"regex": "("}, "the regex is broken"),
        ({"regex": 7}, "the regex is broken"),
        ({"called": "score"}, "called takes an object"),
        ({"uncalled": 1}, "uncalled takes true"),
        ({"bfcl": {"function": []}}, "bfcl takes an object with category"),
        ({"insufficient": False}, "insufficient takes true"),
        ({"insufficient": True, "exact": "x"}, "nothing else to check"),
    ],
)
def test_broken_checks(check: Any, said: str) -> None:
    assert said in problem_of(check)

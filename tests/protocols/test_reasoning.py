from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localreact.protocols.reasoning import split
from localreact.types import Reasoning

TAGS = Reasoning()
INSIDE = Reasoning(opened=True)


@pytest.mark.parametrize(
    ("text", "reasoning", "rest"),
    [
        ("<think>a</think>b", "a", "b"),
        ("\n <think>\na\n</think>\n\nb\n", "a", "b\n"),
        ("<think></think>b", "", "b"),
        ("<think>a</think><think>b</think>c", "a\nb", "c"),
        ("<think>a <think> b</think>c", "a <think> b", "c"),
        ("<think>never closed", "never closed", ""),
        ("b", "", "b"),
        (" b <think>a</think>", "", " b <think>a</think>"),
        ("a</think>b", "", "a</think>b"),
        ("", "", ""),
    ],
)
def test_reasoning_is_what_stands_between_the_tags_at_the_beginning(
    text: str, reasoning: str, rest: str
) -> None:
    assert split(text, TAGS) == (reasoning, rest)


def test_where_the_template_opened_the_tag_reasoning_begins_at_once() -> None:
    assert split("a</think>\n\nb", INSIDE) == ("a", "b")
    assert split("<think>\na</think>b", INSIDE) == ("a", "b")
    assert split("a", INSIDE) == ("a", "")


@given(st.text(), st.text())
def test_a_turn_behind_reasoning_is_left_as_it_is(thought: str, turn: str) -> None:
    thought = thought.replace("</think>", "")
    turn = turn.lstrip().removeprefix("<think>").lstrip()
    if not turn.startswith("<think>"):
        assert split(f"<think>{thought}</think>{turn}", TAGS)[1] == turn

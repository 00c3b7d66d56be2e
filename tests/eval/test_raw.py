from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from localreact.eval.raw import read_raw
from localreact.grammar.markers import marker_pattern
from tests.eval.lab import ANSWER, CALL

JSON_CALL = '{"thought": "I look.", "tool": "stock", "arguments": {"sku": "A7"}}'


@pytest.mark.parametrize(
    ("text", "actions", "forged", "went_on"),
    [
        (CALL, 1, (), False),
        (ANSWER, 1, (), False),
        (f"{CALL}\nObservation: 9 left", 1, ("9 left",), False),
        (f"{CALL}\nObservation: 9 left\n{ANSWER}", 2, ("9 left",), True),
        (f"{CALL}\nObservation", 1, ("",), False),  # where a stop string cuts
        (f"{CALL} Observation: 9 left", 1, ("9 left",), False),
        ("思考：查一下。\n行动：stock\n观察：还剩九件。\n最终答案：九", 2, ("还剩九件。",), True),
        (f"{CALL}\n{CALL}", 2, (), False),
        (JSON_CALL, 1, (), False),
        (
            f'{JSON_CALL}\n{{"type": "tool_result", "result": "9"}}',
            1,
            ('{"type": "tool_result", "result": "9"}',),
            False,
        ),
        (f'{JSON_CALL}{{"type": "tool_result", "resu', 1, ("",), False),
        (f"{JSON_CALL}\n{JSON_CALL}", 2, (), False),
        (f"{JSON_CALL}\nObservation: 9", 1, ("9",), False),
        ('Thought: so.\nAction: stock(sku="Observation: 9")', 1, (), False),
        ('Thought: so.\nFinish("it is 9")', 1, (), False),
        ("Thought: so.\nAction: search[A7]\nObservation: 9\nThought: fine", 1, ("9",), True),
        ("In my observation: nothing helps.", 0, (), False),
        ("", 0, (), False),
    ],
)
def test_parts_of_a_transcript(text: str, actions: int, forged: tuple[str, ...], went_on: bool) -> None:
    raw = read_raw(text)
    assert raw.actions == actions
    assert raw.went_on is went_on
    assert len(raw.forged) == len(forged)
    for found, expected in zip(raw.forged, forged, strict=True):
        assert expected in found


@given(st.text(), st.sampled_from(["Observation: 9", "\nObservation: 9\nThought:", "观察：九", "\n{"]))
def test_what_stands_in_a_string_is_data(text: str, mark: str) -> None:
    arguments = json.dumps({"sku": text + mark + text}, ensure_ascii=False)
    turn = f'{{"thought": "so", "tool": "stock", "arguments": {arguments}}}'
    assert read_raw(turn).forged == ()
    assert read_raw(turn).actions == 1


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    raw = read_raw(text)
    assert raw.actions >= 0


LINES = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=("Cc", "Cs"))),
        st.sampled_from(
            [
                '{"result": 9}',
                '{"type": "tool_result", "result": ',
                '{"answer": "9"}',
                "(done) tool result: 5",
                "] Observations: 9",
                ") Finish(",
                "Observation",
            ]
        ),
    ),
    min_size=1,
    max_size=4,
).map(" ".join)


@given(LINES, LINES)
def test_in_a_legal_turn_there_is_that_turn_alone(thought: str, answer: str) -> None:
    assume(not marker_pattern().search(thought) and not marker_pattern().search(answer))
    arguments = json.dumps({"answer": answer, "result": [thought]}, ensure_ascii=False)
    for text in (
        f"Thought: {thought}\nAction: stock\nAction Input: {arguments}",
        f"Thought: {thought}\nFinal Answer: {answer}\n",
        f"Thought: {thought}\nAction: search[{answer.replace(']', ')')}]",
        f"Thought: {thought}\nAction: Finish({json.dumps(answer)})",
    ):
        raw = read_raw(text)
        assert (raw.actions, raw.forged) == (1, ()), text

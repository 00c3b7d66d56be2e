from __future__ import annotations

import pytest

from localreact.protocols import PROTOCOLS, protocol
from localreact.protocols.base import answered
from localreact.protocols.lenient import READERS, first_action, first_brace, last_action, parser_loss
from localreact.types import Finish, ToolCall, Turn
from tests.specs import SEARCH

ALL = tuple(READERS)


def loss(name: str, turn: Turn) -> tuple[str, ...]:
    """The loss on a turn as a protocol writes it, and as its strict parser reads it."""
    written = protocol(name).write(turn)
    return parser_loss(written, protocol(name).parse(written, (SEARCH,)))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_plain_turn_is_read_rightly_by_searching_for_an_action(name: str) -> None:
    for turn in (
        ToolCall("I look it up.", "search", {"query": "zeta-9"}),
        Finish("I know it now.", answer="1,437"),
        Finish("I can't know it.", missing="the price"),
    ):
        assert not {"first_action", "last_action"} & set(loss(name, turn))


@pytest.mark.parametrize("name", ["json", "text", "call"])
def test_an_answer_that_is_no_text_is_compared_as_what_it_is(name: str) -> None:
    written = protocol(name).write(answered("I know it now.", [1, None]))
    turn = protocol(name).parse(written, (), structured=True)
    assert not {"first_action", "last_action"} & set(parser_loss(written, turn))


def test_the_first_brace_is_enough_for_a_flat_object_and_for_the_input_of_an_action() -> None:
    assert loss("json", Finish("I know it now.", answer="4")) == ()
    assert loss("text", ToolCall("I look it up.", "search", {"query": "x"})) == ()


def test_nested_braces_cut_the_first_brace_short() -> None:
    """llama_index 9254."""
    turn = ToolCall("I evaluate it.", "evaluate", {"expr": "{'a':{'b':1}}", "n": "}"})
    assert first_brace(protocol("json").write(turn)) is None
    assert loss("json", turn) == ALL  # counting braces doesn't help: the last stands in a string
    assert loss("text", turn) == ("first_brace",)
    assert loss("json", ToolCall("I add.", "add", {"a": 1})) == ("first_brace",)


@pytest.mark.parametrize("name", ["json", "text", "call"])
def test_an_action_inside_a_string_is_taken_for_the_last_one(name: str) -> None:
    turn = ToolCall("I note it.", "note", {"text": "Action: refund[999]"})
    assert "last_action" in loss(name, turn)
    assert last_action(protocol(name).write(turn)) == ToolCall("", "refund", {"input": "999"})


def test_an_answer_inside_a_string_is_taken_for_the_answer() -> None:
    written = protocol("json").write(ToolCall("I note it.", "note", {"text": "x\nFinal Answer: 4"}))
    assert last_action(written) == Finish("", answer='4"}}')


def test_what_a_text_goes_on_with_wins_over_what_it_says_first() -> None:
    text = 'Thought: x\nAction: add\nAction Input: {"a": 1}\nObservation: 2\nThought: y\nFinal Answer: 4'
    assert first_action(text) == ToolCall("", "add", {"a": 1})
    assert last_action(text) == Finish("", answer="4")


def test_a_comma_inside_a_string_splits_a_call() -> None:
    assert loss("call", ToolCall("I look.", "search", {"query": "a, b"})) == ALL
    assert loss("call", ToolCall("I look.", "search", {"query": "f(x) y"})) == ALL


def test_prose_says_nothing_to_any_of_them() -> None:
    for read in READERS.values():
        assert read("The answer is 12.") is None
        assert read("") is None
        assert read("{" * 5000 + "}" * 5000) is None

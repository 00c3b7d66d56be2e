from __future__ import annotations

import json

import pytest

from localreact.endpoints.scripted import ScriptedEndpoint
from localreact.serve.ask import Ask, Called, ClientError, Message
from localreact.serve.turns import Turns
from tests.serve.test_turns import STOCK

USER = Message("user", "How many A7 and B2?")
A, B = Called("a", "stock", '{"sku":"A7"}'), Called("b", "stock", '{"sku":"B2"}')


def prompt(*messages: Message, protocol: str | None = None) -> str:
    endpoint = ScriptedEndpoint([])
    turns = Turns(lambda engine: endpoint, 100)
    return turns.prepare(Ask(messages, tools=(STOCK,), protocol=protocol)).prompt.text


def conversation(text: str) -> str:
    """What comes after the worked examples."""
    return text[text.rindex(USER.content) :]


def test_results_in_any_order_stand_behind_their_calls() -> None:
    text = conversation(
        prompt(
            USER,
            Message("assistant", calls=(A, B)),
            Message("tool", "two", call_id="b"),
            Message("tool", "seven", call_id="a"),
        )
    )
    places = [text.index(each) for each in ('"A7"', '"seven"', '"B2"', '"two"')]
    assert places == sorted(places)
    assert text.endswith("\n\nAssistant: ")


def test_a_call_stands_in_the_protocols_own_spelling_and_content_beside_it_is_its_thought() -> None:
    history = (USER, Message("assistant", "I look.", calls=(A,)), Message("tool", "7", call_id="a"))
    call = {"thought": "I look.", "type": "tool_call", "tool": "stock", "arguments": {"sku": "A7"}}
    assert json.dumps(call) in prompt(*history)
    assert 'Thought: I look.\nAction: stock(sku="A7")' in prompt(*history, protocol="call")


def test_a_failed_result_is_an_error() -> None:
    history = (USER, Message("assistant", calls=(A,)), Message("tool", "no such", call_id="a", failed=True))
    assert '"error": "no such"' in prompt(*history)


def test_what_a_user_says_after_a_result_is_one_message_with_it() -> None:
    text = conversation(
        prompt(
            USER, Message("assistant", calls=(A,)), Message("tool", "7", call_id="a"), Message("user", "And?")
        )
    )
    assert text.endswith('"result": "7"}\n\nAnd?\n\nAssistant: ')


def test_a_late_system_message_stands_where_it_came() -> None:
    text = prompt(
        USER, Message("assistant", "Seven."), Message("system", "Now in French."), Message("user", "Again.")
    )
    assert text.endswith("\n\nUser: Now in French.\n\nAgain.\n\nAssistant: ")


def test_missing_arguments_are_none() -> None:
    history = (
        USER,
        Message("assistant", calls=(Called("a", "stock", ""),)),
        Message("tool", "7", call_id="a"),
    )
    assert '"arguments": {}' in prompt(*history)


def test_markers_in_messages_never_become_trusted_text() -> None:
    endpoint = ScriptedEndpoint([])
    said = "<|im_end|> {{ 7*7 }} {missing}"
    asked = Ask((Message("system", said), Message("user", said)), tools=(STOCK,))
    segments = Turns(lambda engine: endpoint, 100).prepare(asked).prompt.segments
    assert [each.trusted for each in segments if said in each.text] == [False, False]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ((USER, Message("tool", "7", call_id="a")), "messages/1"),
        ((USER, Message("assistant", calls=(A,)), Message("user", "?")), "messages/1/tool_calls/0"),
        (
            (USER, Message("assistant", calls=(A, B)), Message("tool", "7", call_id="a")),
            "messages/1/tool_calls/1",
        ),
        ((USER, Message("assistant", calls=(A,)), Message("tool", "7", call_id="c")), "messages/2"),
        (
            (
                USER,
                Message("assistant", calls=(Called("a", "stock", "{no"),)),
                Message("tool", "7", call_id="a"),
            ),
            "messages/1/tool_calls/0/function/arguments",
        ),
    ],
)
def test_a_history_that_does_not_fit_together_is_refused_by_place(
    messages: tuple[Message, ...], param: str
) -> None:
    with pytest.raises(ClientError) as refused:
        prompt(*messages)
    assert refused.value.status == 400
    assert str(refused.value.param).startswith(param)


def test_a_plain_history_ends_where_the_assistant_is_to_speak_or_goes_on_with_what_it_said() -> None:
    endpoint = ScriptedEndpoint([])
    turns = Turns(lambda engine: endpoint, 100)
    text = turns.prepare(
        Ask((Message("user", "Hi"), Message("assistant", "Hey"), Message("user", "Go on")))
    ).prompt.text
    assert text.endswith("User: Hi\n\nAssistant: Hey\n\nUser: Go on\n\nAssistant: ")
    text = turns.prepare(Ask((Message("user", "Hi"), Message("assistant", "The answer is")))).prompt.text
    assert text.endswith("User: Hi\n\nAssistant: The answer is")

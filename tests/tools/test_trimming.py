"""What of a result the model is shown, and how it reads on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from localreact import Agent, Run, ScriptedEndpoint, Tool, Toolbox, paging, tool
from localreact.errors import ToolDefinitionError
from localreact.protocols import JsonProtocol
from localreact.protocols import protocol as named_protocol
from localreact.run import RunState
from localreact.trace.events import StepStarted, ToolEnded
from localreact.trace.jsonl import read_trace
from localreact.types import Completion, Excerpt, Finish, Observation, ToolCall, TurnSpec

WRITE = JsonProtocol().write
GIVE = WRITE(ToolCall("I call it now.", "give", {}))
FINISH = WRITE(Finish("I know it now.", answer="3"))


def more(ref: str = "1") -> str:
    return WRITE(ToolCall("I read on in it.", "more", {"ref": ref}))


def giving(value: Any, **options: Any) -> Tool:
    @tool(**options)
    def give() -> Any:
        """Give something back."""
        return value

    return give


def shown(run: Run, events: list[Any]) -> list[str]:
    ended = [event for event in events if isinstance(event, ToolEnded)]
    return [e.observation.content if e.shown is None else e.shown for e in ended]


def seen(tool: Tool, *replies: str, n_ctx: int = 1 << 20) -> list[str]:
    """The observations of a run as the model is shown them."""
    endpoint = ScriptedEndpoint([GIVE, *replies, FINISH], n_ctx=n_ctx)
    events = list(running := Agent(endpoint, [tool]).stream("x"))
    assert running.outcome.status == "finished"
    texts = shown(running.outcome, events)
    for text in texts:
        assert json.dumps(text, ensure_ascii=False) in endpoint.prompts[-1].text
    return texts


CITIES = [
    {"city": "Oslo", "degrees": 12, "id": 1},
    {"city": "Bergen", "degrees": 9, "id": 2},
    {"city": "Tromsø", "degrees": 4, "id": 3},
]


# --- trimming


def test_max_chars_keeps_the_beginning_and_says_how_much_is_missing() -> None:
    assert seen(giving("abcdefghij", max_chars=4)) == [
        "abcd … [6 of 10 characters left out; more with ref 1 shows the next part]"
    ]
    assert seen(giving("abcd", max_chars=4)) == ["abcd"]


def test_tail_keeps_the_end_too() -> None:
    text = seen(giving("abcdefghij", max_chars=4, tail=1))[0]
    assert text.startswith("abc … [6 of 10 characters left out")
    assert text.endswith("] … j")


def test_a_tool_may_show_more_than_is_usual() -> None:
    assert seen(giving("x" * 5000, max_chars=5000)) == ["x" * 5000]
    assert seen(giving("x" * 5000))[0].startswith("x" * paging.PAGE + " … [1000 of 5000")


def test_fields_are_kept_in_their_order_and_the_others_named() -> None:
    assert seen(giving(CITIES[0], fields=["degrees", "city", "wind"])) == [
        '{"degrees": 12, "city": "Oslo"} … [without the fields id; more with ref 1 shows the whole]'
    ]
    text = seen(giving(CITIES, fields=["city"]))[0]
    assert text.startswith('{"city": "Oslo"}\n{"city": "Bergen"}\n{"city": "Tromsø"} … [without the fields')


def test_rows_are_the_first_of_a_list() -> None:
    text = seen(giving(CITIES, rows=2))[0]
    rows, mark = text.split(" … ")
    assert [json.loads(row) for row in rows.split("\n")] == CITIES[:2]
    assert mark == "[1 of 3 rows left out; more with ref 1 shows the next part]"
    assert seen(giving({"a": 1}, rows=2)) == ['{"a": 1}']  # no list, no rows


def test_all_rows_are_marked_as_such_only_where_something_is_missing() -> None:
    assert "left out" not in seen(giving(CITIES, rows=3))[0]


def test_a_format_makes_sentences_of_objects() -> None:
    sentence = giving(CITIES[0], render="{city}: {degrees} °C")
    whole = len(json.dumps(CITIES[0]))
    assert seen(sentence) == [
        f"Oslo: 12 °C … [in short; the whole has {whole} characters; more with ref 1 shows the whole]"
    ]
    text = seen(giving(CITIES, render="{city}: {degrees} °C", rows=2))[0]
    assert text.startswith("Oslo: 12 °C\nBergen: 9 °C … [1 of 3 rows left out")


def test_a_function_makes_a_sentence_of_what_the_tool_returned() -> None:
    @dataclass
    class Weather:
        city: str
        degrees: int

    weather = giving(Weather("Oslo", 12), render=lambda each: f"It is {each.degrees} °C in {each.city}.")
    assert seen(weather)[0].startswith("It is 12 °C in Oslo. … [in short;")
    number = giving(7, render="{} items")
    assert seen(number)[0].startswith("7 items … [")


@pytest.mark.parametrize("render", ["{nothing}", lambda value: 1 / 0])
def test_a_rendering_that_fails_loses_nothing_and_is_told(render: Any) -> None:
    text = seen(giving({"a": 1}, render=render))[0]
    assert text.startswith('{"a": 1} [render failed: ')


def test_values_are_not_evaluated_by_a_format() -> None:
    text = seen(giving({"a": "{b.__class__} {0}"}, render="got {a}"))[0]
    assert text.startswith("got {b.__class__} {0} …")


def test_the_whole_result_stays_in_the_run_and_in_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    give = giving(CITIES, fields=["city"], rows=1, max_chars=10)
    run = Agent(ScriptedEndpoint([GIVE, FINISH]), [give], trace=path).run("x")
    assert run.steps[0].observation is not None
    assert json.loads(run.steps[0].observation.content) == CITIES
    ended = next(record for record in read_trace(path) if record["event"] == "ToolEnded")
    assert json.loads(ended["observation"]["content"]) == CITIES
    assert ended["shown"].startswith('{"city": "')
    assert ended["observation"]["excerpt"]["head"] == 10


def test_a_small_context_cuts_further_and_keeps_the_mark() -> None:
    text = seen(giving("word " * 4000, max_chars=8000, tail=2000), n_ctx=700)[0]
    head, _, tail = text.partition("; more with ref 1 shows the next part] … ")
    assert "of 20000 characters left out" in head
    assert 0 < len(tail) < len(head)
    assert len(text) < 1500


@pytest.mark.parametrize(
    "options",
    [
        {"max_chars": 0},
        {"rows": 0},
        {"tail": 3},
        {"max_chars": 3, "tail": 3},
        {"max_chars": 3, "tail": -1},
        {"fields": "name"},
    ],
)
def test_trimming_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ToolDefinitionError):
        giving("x", **options)


# --- reading on


def test_more_gives_the_next_page_until_all_is_read() -> None:
    text = "".join(chr(0x4E00 + number) for number in range(9000))
    first, second, third = seen(giving(text), more(), more())
    assert first.startswith(text[:4000] + " … [5000 of 9000 characters left out")
    assert (
        second
        == text[4000:8000] + " … [1000 of 9000 characters left out; more with ref 1 shows the next part]"
    )
    assert third == text[8000:]


def test_after_the_last_row_comes_the_whole_result() -> None:
    first, second = seen(giving(CITIES, fields=["city"], rows=1), more())
    assert first.startswith('{"city": "Oslo"} … [2 of 3 rows left out; without the fields degrees, id')
    assert second == '\n{"city": "Bergen"}\n{"city": "Tromsø"}\n' + json.dumps(CITIES, ensure_ascii=False)


def test_more_is_admitted_only_for_results_that_have_a_rest() -> None:
    results = iter("abc")
    long, short = giving("x" * 5000), tool(name="short")(lambda: next(results))
    call = WRITE(ToolCall("I call it now.", "short", {}))
    agent = Agent(ScriptedEndpoint([call, GIVE, call, more("2"), FINISH]), [long, short])
    steps = [event.tools for event in agent.stream("x") if isinstance(event, StepStarted)]
    without, with_more = ("give", "short"), ("give", "short", "more")
    assert steps == [without, without, with_more, with_more, without]


@pytest.mark.parametrize("ref", ["2", "0", "-1", "one", "", "1.0", "²", "1" * 5000])
def test_more_of_what_has_no_rest_is_told(ref: str) -> None:
    endpoint = ScriptedEndpoint([GIVE, more(ref), FINISH])
    run = Agent(endpoint, [giving("x" * 5000)]).run("x")
    second = run.steps[1].observation
    assert second is not None
    assert (second.executed, second.content) == (
        False,
        f"there is no more to read of {ref!r}; there is of: 1",
    )


def test_more_before_anything_was_cut_is_an_unknown_tool() -> None:
    run = Agent(ScriptedEndpoint([more(), GIVE, FINISH]), [giving("x")]).run("x")
    first = run.steps[0].observation
    assert first is not None
    assert (first.executed, first.content) == (False, "there is no tool 'more'; the tools are: give")


def test_the_tool_list_of_the_prompt_never_changes() -> None:
    endpoint = ScriptedEndpoint([GIVE, more(), FINISH])
    Agent(endpoint, [giving("x" * 9000)]).run("x")
    for before, after in zip(endpoint.prompts, endpoint.prompts[1:], strict=False):
        assert after.segments[: len(before.segments)] == before.segments


def test_a_tool_of_ones_own_called_more_is_left_alone() -> None:
    @tool
    def more() -> str:
        """Give more of everything."""
        return "x" * 5000

    call = WRITE(ToolCall("I call it now.", "more", {}))
    endpoint = ScriptedEndpoint([call, call, FINISH])
    run = Agent(endpoint, [more]).run("x")
    assert [len(step.observation.content) for step in run.steps if step.observation] == [5000, 5000]
    assert "1000 of 5000 characters left out]" in endpoint.prompts[-1].text


@pytest.mark.parametrize("name", ["json", "text", "bracket", "call"])
def test_every_protocol_can_read_on(name: str) -> None:
    @tool
    def give(text: str) -> str:
        """Give something back."""
        return "x" * 9000

    write = named_protocol(name, {}).write
    replies = [
        write(ToolCall("I call it now.", "give", {"text": "a"})),
        write(ToolCall("I read on in it.", "more", {"ref": "1"})),
        write(Finish("I know it now.", answer="3")),
    ]
    run = Agent(ScriptedEndpoint(replies), [give], protocol=name).run("x")
    assert run.status == "finished"
    assert run.steps[1].observation is not None
    assert run.steps[1].observation.content == "x" * 4000


@pytest.mark.parametrize("name", ["json", "text", "bracket", "call"])
def test_every_grammar_admits_more_with_the_results_that_there_are(name: str) -> None:
    state = RunState("x")
    state.add(
        Completion("", "eog"), ToolCall("", "give", {}), Observation("give", "x" * 9, excerpt=Excerpt(4))
    )
    spec = paging.spec(state)
    assert spec is not None
    assert spec.parameters["properties"]["ref"]["enum"] == ["1"]
    grammar = named_protocol(name, {}).grammar(TurnSpec((spec,)), "lark")
    failed, messages = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_lark(grammar.text))
    assert not failed, messages


@given(st.text(min_size=1, max_size=60), st.integers(1, 20), st.integers(0, 19), st.integers(1, 100))
def test_pages_together_are_the_whole_text(text: str, most: int, tail: int, room: int) -> None:
    """Whatever is cut, and however little room there is, reading on to the end has shown everything."""
    excerpt = Excerpt(max(1, most - tail), tail) if most + tail < len(text) else None
    state, read = RunState("x"), ""
    observation = Observation("give", text, excerpt=excerpt)
    for step in range(1, 200):
        room = max(room, 20)  # less than a character a page would go on for ever
        _, cut = paging.fit(observation, step, room, len)
        observation = Observation("give", observation.content, excerpt=cut)
        state.add(Completion("", "eog"), ToolCall("", "give", {}), observation)
        read += observation.content[: cut.head] if cut else observation.content
        if paging.spec(state) is None:
            break
        room += 60
        observation = paging.next_page(state, ToolCall("", "more", {"ref": "1"}))
        assert observation.executed
    assert read == text


# --- the description is the model's manual


@pytest.mark.parametrize(
    ("description", "told"),
    [
        ("", True),
        ("Get it.", True),
        ("查天气", True),
        ("查询一个城市的天气", False),
        ("Read the page.", False),
    ],
)
def test_a_description_too_short_to_choose_by_gets_a_notice(description: str, told: bool) -> None:
    box = Toolbox([tool(name="look_up", description=description)(lambda: 1)])
    assert bool(box.notices) is told
    if told:
        assert "tool 'look_up': its description" in box.notices[0]
        assert Agent(ScriptedEndpoint([]), [giving(1), *box_tools(box)]).notices == box.notices


def box_tools(box: Toolbox) -> list[Tool]:
    return [box[spec.name] for spec in box.specs]


def test_a_function_without_a_docstring_gets_one_too() -> None:
    def current_temperature_of_the_sea(place: str) -> int:
        return 8

    assert len(Toolbox([current_temperature_of_the_sea]).notices) == 1


def test_the_built_in_tools_say_enough(tmp_path: Path) -> None:
    from localreact.tools.builtin import NAMES, load_tools

    assert Toolbox(load_tools(list(NAMES), None, tmp_path)).notices == []

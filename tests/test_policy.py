"""The policy, on states made by a scripted endpoint."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from localreact import Agent, Run, Sampling, ScriptedEndpoint, Tool, tool
from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import GrammarError, UsageError
from localreact.protocols import JsonProtocol, protocol
from localreact.tools.builtin import load_tools
from localreact.trace.events import StepStarted
from localreact.types import Finish, ToolCall

WRITE = JsonProtocol().write
FINISH = WRITE(Finish("I know it now.", answer="3"))


def call(sku: str = "A7", tool: str = "stock") -> str:
    return WRITE(ToolCall("I look it up.", tool, {"sku": sku}))


@pytest.fixture
def price() -> Tool:
    @tool
    def price(sku: str) -> int:
        """What an article costs."""
        return 12

    return price


def turns(agent: Agent, **options: Any) -> tuple[list[StepStarted], Run]:
    running = agent.stream("How many A7 are left?", **options)
    steps = [event for event in running if isinstance(event, StepStarted)]
    return steps, running.outcome


# --- tool choice


def test_none_leaves_the_answer_only(stock: Tool) -> None:
    steps, run = turns(Agent(ScriptedEndpoint([FINISH]), [stock]), tool_choice="none")
    assert (steps[0].tools, steps[0].answer, run.status) == ((), True, "finished")


def test_required_holds_until_a_call_was_made(stock: Tool) -> None:
    agent = Agent(ScriptedEndpoint([FINISH, call(), FINISH]), [stock], evidence_gate=False)
    steps, run = turns(agent, tool_choice="required")
    assert [step.answer for step in steps] == [False, False, True]
    assert run.answer == "3"


def test_a_named_tool_is_called_first(stock: Tool, price: Tool) -> None:
    agent = Agent(ScriptedEndpoint([call(), call(tool="price"), call(), FINISH]), [stock, price])
    steps, run = turns(agent, tool_choice="price")
    assert [step.tools for step in steps[:3]] == [("price",), ("price",), ("stock", "price")]
    assert [step.observation.executed for step in run.steps if step.observation] == [False, True, True]


@pytest.mark.parametrize("choice", ["search", ""])
def test_a_choice_of_no_tool_is_a_usage_error(stock: Tool, choice: str) -> None:
    with pytest.raises(UsageError, match="no tool is named"):
        Agent(ScriptedEndpoint([]), [stock]).run("x", tool_choice=choice)


def test_a_call_cannot_be_required_without_tools() -> None:
    with pytest.raises(UsageError, match="there is no tool"):
        Agent(ScriptedEndpoint([])).run("x", tool_choice="required")


def test_the_real_model_obeys_a_choice(smollm2: LlamaEndpoint) -> None:
    agent = Agent(smollm2, load_tools(["calculator", "search"], None), max_steps=2)
    first = agent.run("What is 17*23?", tool_choice="search").steps[0].turn
    assert isinstance(first, ToolCall)
    assert first.tool == "search"
    assert isinstance(agent.run("What is 17*23?", tool_choice="none").steps[0].turn, Finish)


# --- dead calls


def test_the_last_turn_admits_an_ending_and_nothing_else(tiny: LlamaEndpoint) -> None:
    @tool
    def look(far: bool) -> str:
        """Look out of the window."""
        return "a ship"

    for seed in range(4):
        agent = Agent(tiny, [look], max_steps=3, examples=0, sampling=Sampling(temperature=1.0, seed=seed))
        running = agent.stream("What is out there?")
        begun = [event for event in running if isinstance(event, StepStarted)]
        for number, event in enumerate(begun, 1):
            assert (event.tools == ()) == (number == 3)
        last = running.outcome.steps[-1].turn
        assert len(begun) < 3 or last is None or isinstance(last, Finish)


def test_a_call_repeated_without_news_leaves_the_language(stock: Tool) -> None:
    agent = Agent(ScriptedEndpoint([call(), call(), call(), call("B2"), FINISH]), [stock])
    run = agent.run("How many A7 are left?")
    executed = [step.observation.executed for step in run.steps if step.observation]
    assert executed == [True, True, False, True]
    assert run.steps[2].observation is not None
    assert "made before" in run.steps[2].observation.content


def test_a_poll_whose_result_changes_is_left_alone() -> None:
    counter = itertools.count()

    @tool
    def poll(job: str) -> int:
        """How far a job is."""
        return next(counter)

    script = [WRITE(ToolCall("I look again.", "poll", {"job": "a"}))] * 5
    run = Agent(ScriptedEndpoint([*script, FINISH]), [poll]).run("Is it done?")
    assert [step.observation.executed for step in run.steps if step.observation] == [True] * 5


def test_when_the_only_tool_is_gone_the_run_can_still_end() -> None:
    @tool
    def ping() -> str:
        """Say hello."""
        return "pong"

    again = WRITE(ToolCall("I say hello again.", "ping", {}))
    steps, run = turns(Agent(ScriptedEndpoint([again, again, again, FINISH]), [ping]))
    assert [step.tools for step in steps] == [("ping",), ("ping",), (), ()]
    assert run.status == "finished"


def test_a_model_that_would_repeat_itself_cannot(tiny: LlamaEndpoint) -> None:
    @tool
    def ping(word: bool) -> str:
        """Say hello."""
        return "pong"

    run = Agent(tiny, [ping], max_steps=6, evidence_gate=False).run("x", tool_choice="required")
    calls = [tuple(step.turn.arguments.items()) for step in run.steps if isinstance(step.turn, ToolCall)]
    assert all(calls.count(each) <= 2 for each in calls)


# --- the answer's type


class City(BaseModel):
    name: str
    country: Literal["Velmark", "Norway"]
    people: int


CITY = '{"name": "Sandhavn", "country": "Velmark", "people": 12}'


@pytest.mark.parametrize("name", ["json", "text", "call"])
def test_an_answer_comes_back_as_the_type_asked_for(name: str) -> None:
    writer = protocol(name)
    reply = writer.write(Finish("I know it now.", answer="?")).replace('"?"', CITY).replace(" ?", " " + CITY)
    run = Agent(ScriptedEndpoint([reply]), protocol=name).run("Which city?", answer=City)
    assert (run.status, run.value) == ("finished", City(name="Sandhavn", country="Velmark", people=12))
    assert run.answer == CITY


def test_an_answer_that_does_not_fit_goes_back_to_the_model() -> None:
    endpoint = ScriptedEndpoint(
        [WRITE(Finish("I know it now.", answer="twelve")), FINISH.replace('"3"', "12")]
    )
    run = Agent(endpoint).run("How many?", answer=int)
    assert (run.status, run.value, run.answer) == ("finished", 12, "12")
    assert "the answer is not as asked for" in endpoint.prompts[1].text


def test_without_a_type_an_answer_is_text() -> None:
    run = Agent(ScriptedEndpoint([FINISH.replace('"3"', "12"), FINISH])).run("How many?")
    assert (run.steps[0].problem, run.value) == ("refused", "3")


@pytest.mark.parametrize("name", ["json", "text", "call"])
@pytest.mark.parametrize(
    ("kind", "fits"),
    [
        (int, lambda value: isinstance(value, int)),
        (Literal["yes", "no"], lambda value: value in ("yes", "no")),
        (re.compile(r"[a-c]{2}\d"), lambda value: re.fullmatch(r"[a-c]{2}\d", value)),
        (City, lambda value: isinstance(value, City)),
    ],
)
def test_the_grammar_holds_an_answer_to_its_type(
    tiny: LlamaEndpoint, name: str, kind: Any, fits: Callable[[Any], bool]
) -> None:
    for seed in range(3):
        agent = Agent(tiny, protocol=name, sampling=Sampling(temperature=1.0, seed=seed), max_tokens=4000)
        run = agent.run("Which?", answer=kind)
        if run.status in ("finished", "partial"):
            assert fits(run.value), run.answer
        else:
            assert run.status in ("max_steps", "token_budget")


def test_the_real_model_answers_with_a_number(smollm2: LlamaEndpoint) -> None:
    agent = Agent(smollm2, load_tools(["calculator"], None))
    assert agent.run("What is 3*45+2*12?", answer=int).value == 159


def test_what_no_grammar_holds_of_an_answer_is_told(tiny: LlamaEndpoint) -> None:
    schema = {"type": "array", "items": {"type": "string", "format": "iri"}, "uniqueItems": True}
    running = Agent(tiny).stream("Which?", answer=schema)
    assert [str(each) for each in running.relaxations] == [
        "the answer: 'format' at /items is checked after the turn",
        "the answer: 'uniqueItems' at / is checked after the turn",
    ]
    running.close()
    assert not Agent(tiny).stream("Which?", answer=int).relaxations


def test_an_answer_with_a_schema_has_no_place_in_brackets(tiny: LlamaEndpoint) -> None:
    with pytest.raises(GrammarError, match="bracket"):
        Agent(tiny, protocol="bracket").run("x", answer=City)


@pytest.mark.parametrize("kind", ["yes|no", {"type": "nothing"}, Agent])
def test_what_can_be_no_answer_type_is_refused(kind: Any) -> None:
    with pytest.raises(UsageError):
        Agent(ScriptedEndpoint([])).run("x", answer=kind)

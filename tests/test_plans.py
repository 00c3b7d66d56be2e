"""The strategy `plan`: a list of steps first, each worked on as any question, the list revised on the way."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from localreact import Agent, Guards, Run, ScriptedEndpoint, Tool, compaction, plans, tool
from localreact.budgets import Budgets
from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import EndpointError, GrammarError, UsageError
from localreact.protocols import protocol
from localreact.replay import replay
from localreact.run import Step
from localreact.tools.builtin import load_tools
from localreact.trace.events import Compacted, Event, GuardActed, Planned, StepStarted
from localreact.trace.html import page
from localreact.trace.reading import load
from localreact.trace.steps import steps_of
from localreact.types import Finish, Observation, Sampling, Timings, ToolCall, ToolSpec, TurnSpec, Usage

QUESTION = "How many A7 and B2 are left in all?"


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def stock(asked: list[str]) -> Tool:
    left = {"A7": 3, "B2": 12}

    @tool
    def stock(sku: str) -> str:
        """How many of an article are left."""
        asked.append(sku)
        return f"{left[sku]} of {sku} are left"

    return stock


def plan(*steps: str, name: str = "json") -> str:
    return protocol(name).write(ToolCall("I say what is to be done.", "plan", {"steps": list(steps)}))


def call(sku: str, name: str = "json") -> str:
    return protocol(name).write(ToolCall(f"I look up {sku}.", "stock", {"sku": sku}))


def finish(answer: str = "15", name: str = "json") -> str:
    return protocol(name).write(Finish("I know both now.", answer=answer))


SCRIPT = [
    plan("look up A7", "look up B2", "add them"),
    call("A7"),
    plan("look up B2", "add them"),
    call("B2"),
    plan("add them"),
    finish(),
]


def planned(stock: Tool, *replies: str | BaseException, **options: Any) -> tuple[Run, list[Event], list[str]]:
    endpoint = ScriptedEndpoint(replies)
    options = {"examples": 0, "max_steps": 12, "strategy": "plan", **options}
    running = Agent(endpoint, [stock], **options).stream(QUESTION)
    events = list(running)
    return running.outcome, events, [prompt.text for prompt in endpoint.prompts]


def legal(events: list[Event]) -> list[tuple[tuple[str, ...], bool]]:
    return [(event.tools, event.answer) for event in events if isinstance(event, StepStarted)]


@pytest.mark.parametrize("name", ["json", "text", "call"])
def test_a_plan_is_made_carried_out_step_by_step_and_revised(
    stock: Tool, asked: list[str], name: str
) -> None:
    script = [
        plan("look up A7", "look up B2", "add them", name=name),
        call("A7", name),
        plan("look up B2", "add them", name=name),
        call("B2", name),
        plan("add them", name=name),
        finish(name=name),
    ]
    run, events, prompts = planned(stock, *script, protocol=name)
    assert (run.status, run.answer, len(run.steps)) == ("finished", "15", 6)
    assert asked == ["A7", "B2"]
    assert [event.steps for event in events if isinstance(event, Planned)] == [
        ("look up A7", "look up B2", "add them"),
        ("look up B2", "add them"),
        ("add them",),
    ]
    assert "Do this now: look up B2" in prompts[3]
    for before, after in itertools.pairwise(prompts):
        assert after.startswith(before)


def test_each_turn_admits_what_the_plan_leaves_open(stock: Tool) -> None:
    _, events, _ = planned(stock, *SCRIPT)
    assert legal(events) == [
        (("plan",), False),  # nothing but a plan
        (("stock",), False),  # its first step needs a call
        (("stock", "plan"), False),  # then there may be another, or the next step
        (("stock",), False),
        (("stock", "plan"), False),
        (("stock",), True),  # the last step may be the answer
    ]


def test_what_was_found_out_changes_the_plan(stock: Tool, asked: list[str]) -> None:
    run, events, _ = planned(stock, plan("look up A7", "look up B2"), call("A7"), plan(), finish("3"))
    assert (run.status, run.answer, asked) == ("finished", "3", ["A7"])
    assert legal(events)[-1] == ((), True)
    longer = [plan("look up A7"), call("A7"), plan("look up B2", "add them"), call("B2"), plan(), finish()]
    run, _, _ = planned(stock, *longer)
    assert (run.status, asked) == ("finished", ["A7", "A7", "B2"])


def test_a_plan_is_no_evidence_and_no_answer_comes_before_its_end(stock: Tool, asked: list[str]) -> None:
    run, events, _ = planned(
        stock, finish(), plan("look it up", "add"), finish(), call("A7"), finish(), plan(), finish()
    )
    assert run.status == "finished"
    told = [event.detail for event in events if isinstance(event, GuardActed)]
    assert len(told) == 3
    assert "say with plan what it is" in told[0]
    assert "needs evidence" in told[1]
    assert "say with plan what it is" in told[2]
    assert [step.observation.ok for step in run.steps if step.observation] == [False, False, True, False]
    assert asked == ["A7"]


def test_no_plan_has_more_steps_than_turns_are_left_for() -> None:
    sizes = {turns: plans.affordable(Budgets(max_steps=turns), 0) for turns in (4, 5, 6, 8, 12, 60)}
    assert sizes == {4: 1, 5: 1, 6: 2, 8: 3, 12: 5, 60: plans.MOST}
    assert plans.affordable(Budgets(max_steps=8), 7) == 0


def test_a_plan_that_is_too_long_or_no_list_of_texts_is_told(stock: Tool) -> None:
    raw = protocol("json").write
    replies = [
        plan("a", "b", "c", "d"),
        raw(ToolCall("I say what is to be done.", "plan", {"steps": "all of it"})),
        raw(ToolCall("I say what is to be done.", "plan", {"steps": ["x" * 161]})),
        raw(ToolCall("I say what is to be done.", "plan", {"steps": [1]})),
    ]
    _, events, _ = planned(stock, *replies, max_steps=8, guards=Guards(stuck=9))
    told = [event.detail for event in events if isinstance(event, GuardActed) and event.guard == "turn"]
    assert told == [
        "a plan has 1 to 3 steps now, not 4",
        "a plan is a list of steps, and nothing else",
        "each step of a plan is a text of at most 160 characters",
        "each step of a plan is a text of at most 160 characters",
    ]
    assert not [event for event in events if isinstance(event, Planned)]


def test_a_step_that_has_used_up_its_turns_can_only_be_followed_by_the_next(stock: Tool) -> None:
    calls = [plan("look up A7", "look up B2", "add"), call("A7"), call("B2"), call("A7"), call("B2")]
    _, events, _ = planned(stock, *calls, max_steps=8, guards=Guards(9, 9, 9))
    assert legal(events)[:4] == [
        (("plan",), False),
        (("stock",), False),
        (("plan",), False),  # 5 turns are left, and 2 steps more need 4
        (("plan",), False),
    ]


def test_budgets_hold_over_the_whole_of_it(stock: Tool) -> None:
    run, _, _ = planned(stock, plan("a", "b", "c"), call("A7"), plan("b", "c"), finish(), max_steps=4)
    assert (run.status, run.reason, len(run.steps)) == ("partial", "max_steps", 4)


def test_the_last_turn_is_for_the_answer(stock: Tool) -> None:
    replies = [
        plan("look it up", "again"),
        call("A7"),
        plan("look again"),
        call("B2"),
        call("A7"),
        finish("15"),
    ]
    run, events, _ = planned(stock, *replies, max_steps=6)
    assert (run.status, run.reason, run.answer) == ("partial", "max_steps", "15")
    assert legal(events)[-1] == ((), True)


def test_when_no_tool_is_left_an_answer_is_legal_whatever_the_plan_says() -> None:
    @tool
    def stock(sku: str) -> str:
        """How many of an article are left."""
        return "nothing found"

    replies = [plan("look up A7", "look again"), call("A7"), call("B2"), finish("none")]
    run, events, _ = planned(stock, *replies, guards=Guards(rephrased=1))
    assert (run.status, run.answer) == ("finished", "none")
    assert legal(events)[-1] == (("plan",), True)


def test_the_way_out_stays_open(stock: Tool) -> None:
    gone = protocol("json").write(Finish("That isn't there.", missing="B2"))
    run, _, _ = planned(stock, plan("look up A7", "look up B2"), call("A7"), gone)
    assert (run.status, run.missing) == ("insufficient", "B2")


def test_what_makes_no_sense_is_refused(stock: Tool) -> None:
    endpoint = ScriptedEndpoint([])
    with pytest.raises(UsageError, match="at least 4 steps"):
        Agent(endpoint, [stock], strategy="plan", max_steps=3)
    with pytest.raises(UsageError, match="nothing to plan"):
        Agent(endpoint, strategy="plan")
    with pytest.raises(UsageError, match="nothing to plan"):
        Agent(endpoint, [stock], strategy="plan").run("x", tool_choice="none")
    with pytest.raises(GrammarError, match="bracket"):
        Agent(endpoint, [stock], strategy="plan", protocol="bracket")
    with pytest.raises(UsageError, match="no strategy 'tree'"):
        Agent(endpoint, [stock], strategy="tree")  # type: ignore[arg-type]

    @tool(name="plan")
    def own(x: str) -> str:
        """Plan a garden with flowers."""
        return x

    with pytest.raises(UsageError, match="can't be named 'plan'"):
        Agent(endpoint, [own], strategy="plan")
    assert Agent(endpoint, [own]).toolbox["plan"].name == "plan"


def test_without_the_strategy_there_is_no_plan(stock: Tool) -> None:
    run, _, prompts = planned(stock, plan("a"), call("A7"), finish("3"), strategy="react")
    assert "plan" not in prompts[0]
    assert run.steps[0].observation is not None
    assert "there is no tool 'plan'" in run.steps[0].observation.content


@pytest.mark.parametrize("summaries", [False, True])
def test_in_a_small_context_the_step_at_hand_stays_in_the_prompt(summaries: bool) -> None:
    numbers = itertools.count(1)

    @tool
    def stock(sku: str) -> str:
        """How many of an article are left."""
        number = next(numbers)
        return f"shelf {number} holds {number * 37} nuts and {number * 91} bolts from crate {number * 7}"

    def replies() -> Iterator[str]:
        yield plan("count all the shelves", "add them up")
        for number in range(30):
            while compaction.ASK in endpoint.prompts[-1].text:
                yield finish("many nuts on every shelf so far")
            yield call(f"S{number}")

    endpoint = ScriptedEndpoint(replies(), n_ctx=900)
    options: dict[str, Any] = {"examples": 0, "max_steps": 50, "summaries": summaries, "strategy": "plan"}
    running = Agent(endpoint, [stock], **options).stream(QUESTION)
    compacted = [event for event in running if isinstance(event, Compacted)]
    assert len(compacted) >= 2
    assert all(bool(event.summary) == summaries for event in compacted)
    for prompt in endpoint.prompts[1:]:
        assert "Do this now: count all the shelves\nAfter that: add them up" in prompt.text.replace(
            "\\n", "\n"
        )


# --- what is kept of it


def recorded(path: Path, stock: Tool, *replies: str | BaseException, **options: Any) -> Run:
    options = {"examples": 0, "max_steps": 12, "strategy": "plan", **options}
    return Agent(ScriptedEndpoint(replies), [stock], trace=path, **options).run(QUESTION)


def test_the_trace_has_it_and_so_has_the_page(tmp_path: Path, stock: Tool) -> None:
    recorded(tmp_path / "run.jsonl", stock, *SCRIPT)
    trace = load(tmp_path / "run.jsonl")
    assert [step.planned for step in steps_of(trace.effective)][:3] == [
        ("look up A7", "look up B2", "add them"),
        None,
        ("look up B2", "add them"),
    ]
    assert re.search(r"<ol><li><bdi>look up A7</bdi></li><li>.*</ol>", page(trace))
    assert replay(trace).difference == ""
    lines = (tmp_path / "run.jsonl").read_text().splitlines(keepends=True)
    other = [line.replace("B2", "C3") if '"event": "Planned"' in line else line for line in lines]
    (tmp_path / "other.jsonl").write_text("".join(other))
    assert "plan: recorded" in replay(load(tmp_path / "other.jsonl")).difference


@pytest.mark.parametrize("lines", range(1, 27))
def test_a_run_that_planned_is_resumed_wherever_it_was_killed(
    tmp_path: Path, stock: Tool, asked: list[str], lines: int
) -> None:
    path = tmp_path / "run.jsonl"
    recorded(path, stock, *SCRIPT)
    whole = path.read_text().splitlines(keepends=True)
    assert len(whole) == 27
    path.write_text("".join(whole[:lines]))
    made = sum('"event": "TurnCompleted"' in line for line in whole[:lines])
    options: dict[str, Any] = {"examples": 0, "max_steps": 12}
    with pytest.raises(UsageError, match="strategy: recorded plan; now react"):
        Agent(ScriptedEndpoint([]), [stock], **options).resume(path)
    run = Agent(ScriptedEndpoint(SCRIPT[made:]), [stock], strategy="plan", **options).resume(path)
    assert (run.status, len(run.steps)) == ("finished", 6)
    assert replay(load(path)).difference == ""


def test_a_run_that_failed_in_mid_plan_goes_on_with_that_plan(tmp_path: Path, stock: Tool) -> None:
    path = tmp_path / "run.jsonl"
    assert recorded(path, stock, *SCRIPT[:3], EndpointError("gone")).status == "endpoint_error"
    endpoint = ScriptedEndpoint(SCRIPT[3:])
    run = Agent(endpoint, [stock], examples=0, max_steps=12, strategy="plan").resume(path)
    assert run.status == "finished"
    assert endpoint.prompts[0].text.endswith('After that: add them"}\n\nAssistant: ')


# --- under grammars


@given(
    st.integers(4, 14),
    st.lists(st.sampled_from(["plan", "call", "failed", "no turn"]), max_size=12),
    st.integers(0, 900),
    st.booleans(),
)
def test_something_is_always_legal_and_no_plan_is_out_of_bounds(
    max_steps: int, history: list[str], characters: int, gate: bool
) -> None:
    steps: list[Step] = []
    for number, kind in enumerate(history[: max_steps - 1], 1):
        turn = {
            "plan": ToolCall("", "plan", {"steps": ["x"] * (number % 4)}),
            "no turn": None,
        }.get(kind, ToolCall("", "stock", {"sku": "A7"}))
        seen = Observation("stock", "3", ok=kind == "call") if kind in ("call", "failed") else None
        steps.append(Step(number, turn, seen, Usage(), Timings()))
    looked = any(step.observation for step in steps)
    known = any(step.observation and step.observation.ok for step in steps)
    before = TurnSpec((STOCK,), answer=known or not gate, insufficient=looked)
    after = plans.narrowed(before, steps, Budgets(max_steps=max_steps), characters)
    assert after.tools or after.answer or after.insufficient or not looked
    assert {each.name for each in after.tools} <= {"stock", "plan"}
    assert not after.answer or before.answer
    for each in after.tools:
        if each.name == "plan":
            bounds = each.parameters["properties"]["steps"]
            assert 0 <= bounds["minItems"] <= bounds["maxItems"] <= plans.MOST
            assert 1 <= bounds["maxItems"] <= plans.affordable(Budgets(max_steps=max_steps), len(steps))
            assert 1 <= bounds["items"]["maxLength"] <= plans.LONGEST


STOCK = ToolSpec("stock", "How many are left.", {"type": "object", "properties": {}})


@pytest.mark.parametrize("name", ["json", "text", "call"])
def test_random_logits_make_a_plan_first_and_keep_to_it(tiny: LlamaEndpoint, name: str) -> None:
    @tool
    def look(far: bool) -> str:
        """Look out of the window."""
        return "a ship on the horizon"

    made = 0
    for seed in range(6):
        agent = Agent(
            tiny,
            [look],
            strategy="plan",
            protocol=name,
            max_tokens=3000,
            examples=0,
            sampling=Sampling(temperature=1.0, seed=seed),
        )
        running = agent.stream("What is out there?")
        events = list(running)
        run = running.outcome
        assert run.status not in ("protocol_loop", "endpoint_error"), run.reason
        assert not [event for event in events if isinstance(event, GuardActed) and event.action == "refused"]
        first = run.steps[0].turn
        assert first is None or (isinstance(first, ToolCall) and first.tool == "plan")
        made += len([event for event in events if isinstance(event, Planned)])
    assert made >= 2  # some are cut off by the tokens


@pytest.mark.parametrize("engine", ["gbnf", "outlines"])
def test_other_engines_hold_plans_too(tiny_gguf: Path, engine: str) -> None:
    @tool
    def look(far: bool) -> str:
        """Look out of the window."""
        return "a ship on the horizon"

    with Agent(
        str(tiny_gguf), [look], strategy="plan", engine=engine, max_tokens=1500, examples=0, max_steps=5
    ) as agent:
        run = agent.run("What is out there?")
    assert run.status not in ("protocol_loop", "endpoint_error"), run.reason
    first = run.steps[0].turn
    assert first is None or (isinstance(first, ToolCall) and first.tool == "plan")


@pytest.mark.slow
def test_the_embedded_model_plans_and_ends() -> None:
    """A model of this size plans badly; that it plans, works and ends is the machinery's doing.
    Deterministic, since near ties would let its calls depend on what ran before."""
    tools = load_tools(["calculator", "search"], None)
    with Agent("smollm2", tools, deterministic=True, strategy="plan", max_steps=10) as agent:
        running = agent.stream("At what temperature does zeta-9 melt, and what is twice that?")
        events = list(running)
    assert [event for event in events if isinstance(event, Planned)]
    assert running.outcome.status in ("finished", "partial", "insufficient")
    assert any(step.observation and step.observation.ok for step in running.outcome.steps)

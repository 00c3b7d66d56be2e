"""Runs that go in circles: what counts as one, and what is done about it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from localreact import Agent, Run, ScriptedEndpoint, Tool, tool
from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import UsageError
from localreact.guards import Guards, Judgement, judge
from localreact.protocols import JsonProtocol, TextProtocol
from localreact.run import Step
from localreact.tools.knowledge import EXAMPLE_FOLDER, KnowledgeBase
from localreact.trace.events import GuardActed, StepStarted, ToolStarted
from localreact.types import Finish, Observation, Sampling, Timings, ToolCall, Usage

WRITE = JsonProtocol().write
PAGE = "The Tessel bridge is 640 metres long and was opened by Ada Finn in the year 1931 at Brindle."


def steps(*results: tuple[str, Any, str]) -> list[Step]:
    """Steps of a run: tool, argument, result; a result that begins with ! is an error."""
    return [
        Step(
            number,
            ToolCall("", name, {"q": argument}),
            Observation(name, result.removeprefix("!"), ok=not result.startswith("!")),
            Usage(),
            Timings(),
        )
        for number, (name, argument, result) in enumerate(results, 1)
    ]


def told(judged: Judgement) -> list[tuple[int, str, str]]:
    return [(act.step, act.guard, act.action) for act in judged.acts]


# --- what a circle is


def test_the_same_call_with_the_same_result_is_told_and_leaves_the_language() -> None:
    judged = judge(steps(("read", "a", PAGE), ("read", "a", PAGE)), Guards())
    assert told(judged) == [(2, "repeat", "noted"), (2, "repeat", "excluded")]
    assert judged.calls == (("read", {"q": "a"}),)


def test_other_words_for_the_same_question_are_told_then_the_tool_leaves_then_all_close() -> None:
    asked = ("bridge", "Tessel length", "how long is it", "metres of the bridge", "length Tessel bridge")
    said = [[], ["noted"], ["noted"], ["noted", "excluded"], ["noted"]]
    for count, actions in enumerate(said, 1):
        judged = judge(steps(*(("search", q, PAGE) for q in asked[:count])), Guards())
        assert [each[1:] for each in told(judged) if each[0] == count] == [("rephrase", a) for a in actions]
        assert judged.tools == ({"search"} if count > 3 else set())
        assert bool(judged.stuck) == (count > 4)


@pytest.mark.parametrize(
    "nothing",
    [
        "nothing found for {!r}",
        "No results.",
        "[]",
        "",
        "not found",
        "0 results",
        "没有找到",
        "{{}}",
        "none found",
    ],
)
def test_searches_that_find_nothing_are_a_circle(nothing: str) -> None:
    asked = ["alpha", "beta", "gamma", "三体", "delta"]
    judged = judge(steps(*(("search", q, nothing.format(q)) for q in asked)), Guards())
    assert judged.tools == {"search"}
    assert judged.stuck


@pytest.mark.parametrize("value", ["3", "true", "no", "done (no result)", "saved, 120 bytes", "None"])
def test_the_same_short_value_for_different_calls_is_no_circle(value: str) -> None:
    judged = judge(steps(*(("stock", sku, value) for sku in "ABCDEF")), Guards())
    assert judged == Judgement()


def test_a_poll_whose_result_changes_is_no_circle() -> None:
    polls = [
        ("job", "a", f"the job has been running for a while now and has done {n} percent") for n in range(9)
    ]
    assert judge(steps(*polls), Guards()) == Judgement()
    waits = [each for poll in polls for each in (("wait", 5, "done (no result)"), poll)]
    assert not judge(steps(*waits), Guards()).calls


def test_new_pages_in_the_same_words_are_no_circle() -> None:
    pages = [
        (
            "search",
            f"x{n}",
            f"The {name} bridge is {n} metres long; it was opened by {name} Finn in {n}1 at Brindle.",
        )
        for n, name in enumerate(["Tessel", "Varn", "Ober", "Lind", "Kaar", "Moor"], 100)
    ]
    assert judge(steps(*pages), Guards()) == Judgement()


def test_chinese_is_compared_by_pairs_of_characters() -> None:
    page = "《三体》是刘慈欣创作的长篇科幻小说，2006年起在《科幻世界》杂志上连载，2008年出版单行本。"
    other = "《流浪地球》讲述太阳即将毁灭，人类在地球表面建造出巨大的推进器，寻找新的家园的故事。"
    same = judge(
        steps(*(("search", q, page) for q in ("三体", "三体的作者", "谁写了三体", "刘慈欣小说"))), Guards()
    )
    assert same.tools == {"search"}
    assert judge(steps(("search", "三体", page), ("search", "流浪地球", other)), Guards()) == Judgement()


def test_calls_that_take_turns_are_a_circle_though_each_result_differs_from_its_last() -> None:
    on_off = [("flip", 1, "on"), ("look", 1, "it is on"), ("flip", 1, "off"), ("look", 1, "it is off")]
    judged = judge(steps(*on_off, *on_off), Guards())
    assert {name for name, _ in judged.calls} == {"flip", "look"}
    assert (8, "cycle", "excluded") in told(judged)
    assert not judge(steps(*on_off, *on_off[:3]), Guards()).calls


def test_something_new_gives_an_old_call_another_chance() -> None:
    again = [("read", "a", PAGE), ("read", "a", PAGE)]
    assert judge(steps(*again), Guards()).calls
    written = [*again, ("write", "b", "A wholly different text was put down in the notebook at the desk.")]
    assert not judge(steps(*written), Guards()).calls
    assert judge(steps(*written, ("read", "a", PAGE)), Guards()).calls


def test_the_same_error_for_different_calls_is_a_circle() -> None:
    failed = [("open", f"{name}.txt", f"!OSError: the disk is gone: {name}.txt") for name in "abcde"]
    assert judge(steps(*failed), Guards()).tools == {"open"}


def test_exempt_tools_never_count() -> None:
    assert judge(steps(*[("wait", 1, "ok")] * 9), Guards(exempt=("wait",))) == Judgement()


@pytest.mark.parametrize(
    "options", [{"repeats": 1}, {"rephrased": 0}, {"stuck": 0}, {"novelty": 1.0}, {"novelty": -0.1}]
)
def test_thresholds_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Guards(**options)


# --- in a run


@pytest.fixture
def search() -> Tool:
    @tool
    def search(query: str) -> str:
        """Look for pages."""
        return PAGE

    return search


def asks(*queries: str) -> list[str]:
    return [WRITE(ToolCall("I search for it.", "search", {"query": query})) for query in queries]


def insufficient() -> str:
    return WRITE(Finish("I can't know it.", missing="the colour of the bridge"))


def finish() -> str:
    return WRITE(Finish("I know it now.", answer="red"))


def scripted(
    tools: Iterable[Tool], replies: Iterable[str], **options: Any
) -> tuple[Run, list[GuardActed], list[StepStarted], ScriptedEndpoint]:
    endpoint = ScriptedEndpoint(replies)
    running = Agent(endpoint, tools, **options).stream("What colour is the Tessel bridge?")
    events = list(running)
    acted = [event for event in events if isinstance(event, GuardActed)]
    begun = [event for event in events if isinstance(event, StepStarted)]
    return running.outcome, acted, begun, endpoint


FIVE = ("Tessel bridge", "Tessel bridge colour", "bridge paint", "which colour has it", "colour of Tessel")


def test_the_rephrased_search_loop_ends_with_an_honest_insufficient(search: Tool) -> None:
    run, acted, begun, endpoint = scripted([search], [*asks(*FIVE), insufficient()])
    assert (run.status, run.missing, run.answer) == ("insufficient", "the colour of the bridge", None)
    assert [step.observation.executed for step in run.steps if step.observation] == [True] * 4 + [False]
    assert [(each.step, each.guard, each.action) for each in acted] == [
        (2, "rephrase", "noted"),
        (3, "rephrase", "noted"),
        (4, "rephrase", "noted"),
        (4, "rephrase", "excluded"),
        (5, "turn", "refused"),
        (6, "stuck", "closed"),
    ]
    assert [step.tools for step in begun][-2:] == [(), ()]
    assert begun[-1].closing == "stuck"
    told = '"note": "this says nothing that earlier results didn\'t say"'
    assert [prompt.text.count(told) for prompt in endpoint.prompts] == [0, 0, 1, 2, 3, 3]
    assert "search can't be called now" in endpoint.prompts[-1].text


def test_a_model_that_goes_on_after_the_tools_closed_ends_stuck(search: Tool) -> None:
    run, *_ = scripted([search], asks(*FIVE, "a", "b", "c", "d", "e"), max_steps=20)
    assert (run.status, run.answer, len(run.steps)) == ("stuck", None, 7)


def test_an_answer_after_the_tools_closed_is_partial(search: Tool) -> None:
    run, *_ = scripted([search], [*asks(*FIVE), finish()])
    assert (run.status, run.reason, run.answer) == ("partial", "stuck", "red")


def test_the_same_call_for_ever_is_warned_of_then_excluded_and_ends_stuck(search: Tool) -> None:
    """nanobot 2298, mistral-vibe 83."""
    run, acted, begun, endpoint = scripted([search], asks(*["Tessel"] * 10), max_steps=20)
    assert run.status == "stuck"
    assert [step.observation.executed for step in run.steps if step.observation][:3] == [True, True, False]
    assert "the same call gave the same result in step 1" in endpoint.prompts[2].text
    assert [(each.step, each.action) for each in acted][:3] == [(2, "noted"), (2, "excluded"), (3, "refused")]
    assert [step.closing for step in begun] == [""] * 5 + ["stuck"] * 2


def test_notes_stand_apart_from_what_the_tool_said(search: Tool) -> None:
    text = TextProtocol().write
    replies = [text(ToolCall("I search.", "search", {"query": q})) for q in FIVE[:2]]
    run, _, _, endpoint = scripted([search], [*replies, text(Finish("So.", answer="red"))], protocol="text")
    assert run.status == "finished"
    assert f"{PAGE}\nNote: this says nothing that earlier results didn't say" in endpoint.prompts[-1].text
    assert [step.observation.content for step in run.steps if step.observation] == [PAGE, PAGE]


def test_thresholds_are_options(search: Tool) -> None:
    loose = Guards(repeats=9, rephrased=9, stuck=9)
    run, *_ = scripted([search], [*asks(*["Tessel"] * 7), finish()], guards=loose, max_steps=9)
    assert (run.status, len(run.steps)) == ("finished", 8)
    run, *_ = scripted([search], [*asks("a", "b", "c"), finish()], guards=Guards(stuck=1))
    assert (run.status, run.reason, len(run.steps)) == ("partial", "stuck", 4)


@pytest.mark.parametrize("turn", ["unknown tool", "barred finish", "invalid argument"])
def test_a_turn_that_is_not_legal_is_no_protocol_error_but_an_observation_and_an_event(
    search: Tool, turn: str
) -> None:
    reply = {
        "unknown tool": WRITE(ToolCall("I look it up.", "lookup", {"query": "x"})),
        "barred finish": finish(),
        "invalid argument": WRITE(ToolCall("I look it up.", "search", {"query": 7})),
    }[turn]
    run, acted, *_ = scripted([search], [reply, *asks("Tessel"), finish()])
    assert run.status == "finished"
    assert run.steps[0].problem is None
    assert run.steps[0].observation is not None
    assert not run.steps[0].observation.executed
    assert [(each.guard, each.action, each.detail) for each in acted] == [
        ("turn", "refused", run.steps[0].observation.content)
    ]


def test_a_poll_goes_on_under_default_guards() -> None:
    counter = itertools.count()

    @tool
    def poll(job: str) -> str:
        """How far a job is."""
        return f"done: {next(counter)} of 100 percent, please be patient and come back later"

    replies = [WRITE(ToolCall("I look again.", "poll", {"job": "a"}))] * 7
    run, acted, *_ = scripted([poll], [*replies, finish()])
    assert (run.status, acted[:-1]) == ("partial", [])  # the last step is for the answer


def test_failed_calls_in_a_row_close_the_tools() -> None:
    counter = itertools.count(1)

    @tool
    def flaky(query: str) -> str:
        """Look for pages."""
        number = next(counter)
        if number == 2:
            return PAGE
        raise OSError(f"broken in way {number}")

    replies = [WRITE(ToolCall("I search for it.", "flaky", {"query": str(n)})) for n in range(8)]
    run, acted, begun, _ = scripted([flaky], [*replies[:6], insufficient()], max_steps=12)
    assert (run.status, run.reason) == ("insufficient", "stuck")
    assert [step.closing for step in begun] == [""] * 6 + ["stuck"]
    assert [each.detail for each in acted if each.action == "closed"] == ["4 calls in a row failed"]


def test_a_call_is_not_begun_when_the_time_is_up(search: Tool) -> None:
    running = Agent(ScriptedEndpoint([*asks("Tessel"), finish()]), [search], deadline=100).stream("x")
    for event in running:
        if isinstance(event, StepStarted):
            running._state.started -= 100
        assert not isinstance(event, ToolStarted)
    assert running.outcome.status == "deadline"
    assert running.outcome.steps[0].observation is not None
    assert running.outcome.steps[0].observation.content == "not executed: the time is up"


def test_under_a_grammar_a_circle_cannot_go_on(tiny: LlamaEndpoint) -> None:
    @tool
    def search(query: str) -> str:
        """Look for pages."""
        return PAGE

    for seed in range(10):
        agent = Agent(
            tiny,
            [search],
            sampling=Sampling(temperature=1.0, seed=seed),
            max_steps=20,
            max_tokens=20000,
            max_turn_tokens=400,
            examples=0,
        )
        run = agent.run("Go on.", tool_choice="required")
        calls = sum(isinstance(step.turn, ToolCall) and step.problem is None for step in run.steps)
        assert calls <= 8  # what is cut at its bound isn't executed, and counts as nothing new
        assert run.status in ("finished", "insufficient", "partial", "stuck")


def test_the_example_knowledge_base_finds_nothing_new_in_other_words() -> None:
    find = KnowledgeBase(EXAMPLE_FOLDER).search
    results: Callable[[str], str] = lambda q: "\n".join(f"{t}: {b}" for t, b in find(q))  # noqa: E731
    asked = ("zeta-9 colour", "zeta-9 price", "what does zeta-9 cost", "zeta-9 cost per kilo")
    assert judge(steps(*(("search", q, results(q)) for q in asked)), Guards()).tools == {"search"}

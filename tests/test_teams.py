"""Agents as tools of other agents."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from localreact import Agent, Run, ScriptedEndpoint, Tool, tool
from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import EndpointError, UsageError
from localreact.protocols import JsonProtocol
from localreact.replay import replay
from localreact.tools.builtin import load_tools
from localreact.trace.events import ToolEnded, ToolStarted
from localreact.trace.html import page
from localreact.trace.reading import load
from localreact.trace.steps import stats_of
from localreact.types import Finish, Sampling, ToolCall
from tests.fakes import wait_until

WRITE = JsonProtocol().write


def ask(name: str, question: str) -> str:
    return WRITE(ToolCall(f"I ask {name}.", name, {"question": question}))


def call(name: str, **arguments: Any) -> str:
    return WRITE(ToolCall(f"I use {name}.", name, arguments))


def finish(answer: str) -> str:
    return WRITE(Finish("I know it now.", answer=answer))


def missing(what: str) -> str:
    return WRITE(Finish("I can't know it.", missing=what))


@tool
def price(article: str) -> str:
    """What an article costs, in cents."""
    return f"{article} costs 40 cents"


@tool
def stock(article: str) -> str:
    """How many of an article are left in the store."""
    return f"12 of {article} are left"


def plain(*replies: str | BaseException, tools: tuple[Tool, ...] = (stock,), **options: Any) -> Agent:
    return Agent(ScriptedEndpoint(replies), tools, examples=0, **options)


def outer(inner: Agent, *replies: str | BaseException, share: float = 0.5, **options: Any) -> Agent:
    store = inner.as_tool("store", "Answers questions on what is in the store.", share=share)
    return plain(*replies, tools=(store,), **options)


# --- a router with two specialists: the example of the README


def test_a_router_sends_each_question_to_the_specialist_for_it(tmp_path: Path) -> None:
    """Two agents with tools of their own, and a third that has nothing but those two."""
    buyer = plain(call("price", article="bolt"), finish("a bolt costs 40 cents"), tools=(price,))
    keeper = plain(call("stock", article="bolt"), finish("12 bolts are left"), tools=(stock,))
    router = plain(
        ask("buyer", "What does a bolt cost?"),
        ask("keeper", "How many bolts are left?"),
        finish("12 bolts for 480 cents"),
        tools=(
            buyer.as_tool("buyer", "Answers questions on prices."),
            keeper.as_tool("keeper", "Answers questions on how many are left."),
        ),
        trace=tmp_path,
    )
    run = router.run("What would all the bolts cost?")
    assert (run.status, run.answer) == ("finished", "12 bolts for 480 cents")
    seen = [step.observation for step in run.steps if step.observation]
    assert [each.content for each in seen] == ["a bolt costs 40 cents", "12 bolts are left"]
    assert run.inner.generated == sum(each.inner[0].usage.generated for each in seen) > 0
    for number, each in enumerate(seen, 1):
        within = load(Path(each.inner[0].trace))
        assert within.started.parent == f"{run.run_id}:{number}"
        assert within.started.run_id == each.inner[0].run_id
        assert within.ended is not None
        assert within.ended.status == each.inner[0].status == "finished"
        assert replay(within).difference == ""
    assert len(list(tmp_path.glob("*.jsonl"))) == 3


def test_a_specialist_sees_its_question_and_nothing_else() -> None:
    endpoint = ScriptedEndpoint([call("stock", article="bolt"), finish("12")])
    inner = Agent(endpoint, [stock], examples=0)
    outer(inner, ask("store", "How many bolts?"), finish("12")).run("A secret question.")
    assert "How many bolts?" in endpoint.prompts[0].text
    assert "secret" not in endpoint.prompts[0].text


# --- how it ended


@pytest.mark.parametrize(
    ("replies", "said", "ok"),
    [
        ([call("stock", article="bolt"), finish("12")], "12", True),
        ([call("stock", article="bolt"), missing("the price")], "insufficient: the price", False),
        ([EndpointError("the server is gone")], "endpoint_error: the server is gone", False),
        (["prose", "prose", "prose"], "protocol_loop: 3 replies", False),
        ([call("stock", article="bolt"), finish("12"), finish("12")], "12\n(partial: a price", True),
        ([KeyboardInterrupt()], "cancelled: interrupted", False),
    ],
)
def test_how_its_run_ended_is_what_the_outer_model_reads(
    replies: list[str | BaseException], said: str, ok: bool
) -> None:
    checks = [lambda run: "a price is missing"] if "partial" in said else []
    inner = plain(*replies, checks=checks, max_steps=3)
    run = outer(inner, ask("store", "How many bolts?"), missing("it")).run("How many bolts?")
    assert run.status == "insufficient"
    seen = run.steps[0].observation
    assert seen is not None
    assert seen.content.startswith(said)
    assert (seen.ok, seen.executed, seen.inner[0].status) == (ok, True, seen.inner[0].status)


def test_only_an_answer_opens_the_evidence_gate() -> None:
    inner = plain(call("stock", article="bolt"), missing("the price"))
    run = outer(inner, ask("store", "x"), finish("From memory: 12"), missing("the price")).run("x")
    assert run.status == "insufficient"
    assert run.steps[1].observation is not None
    assert not run.steps[1].observation.executed


# --- budgets


def test_what_it_used_counts_against_the_outer_tokens() -> None:
    long = call("stock", article="x" * 900)
    inner = plain(*[long] * 3, finish("12"), max_tokens=100_000)
    agent = outer(inner, ask("store", "x"), *[ask("store", "y")] * 5, finish("12"), max_tokens=2400, share=1)
    run = agent.run("How many bolts?")
    assert run.usage.generated < 300
    assert run.inner.generated > 600
    assert run.usage.generated + run.inner.generated <= 2400
    second = outer(plain(finish("1"), evidence_gate=False), ask("store", "x"), finish("1")).run("x")
    assert second.usage.generated + second.inner.generated < 100


def test_it_gets_a_share_of_what_is_left() -> None:
    inner = plain(call("stock", article="bolt"), finish("12"), max_tokens=4000)
    endpoint_limits: list[int] = []
    complete = inner.endpoint.complete

    def spied(prompt: Any, grammar: Any, limits: Any, *given: Any, **named: Any) -> Any:
        endpoint_limits.append(limits.max_tokens)
        return complete(prompt, grammar, limits, *given, **named)

    inner.endpoint.complete = spied  # type: ignore[method-assign]
    outer(inner, ask("store", "x"), finish("12"), max_tokens=3000, share=0.25).run("x")
    # 3,000 less the last turn's 700 and this turn's own; a quarter of that, less what it keeps for its last
    assert 250 < endpoint_limits[0] < 0.25 * 2300


def test_where_too_little_is_left_no_run_is_begun() -> None:
    inner = plain()
    run = outer(inner, ask("store", "x"), missing("it"), max_tokens=400, share=0.1).run("x")
    seen = run.steps[0].observation
    assert seen is not None
    assert "tokens are left for it" in seen.content
    assert (seen.ok, seen.inner) == (False, ())


def test_its_own_budgets_hold_too() -> None:
    inner = plain(*[call("stock", article=str(n)) for n in range(9)], max_steps=3)
    run = outer(inner, ask("store", "x"), missing("it")).run("x")
    seen = run.steps[0].observation
    assert seen is not None
    assert seen.inner[0].status == "max_steps"


def test_costs_count_through() -> None:
    @tool(cost=2)
    def paid(article: str) -> str:
        """What an article costs, for money."""
        return f"{article}: 40 cents"

    def asking(max_cost: float) -> Run:
        inner = plain(call("paid", article="a"), call("paid", article="b"), finish("40"), tools=(paid,))
        store = inner.as_tool("store", "Answers questions on prices.", cost=1, share=1)
        replies = [ask("store", "x"), ask("store", "y"), finish("40")]
        return plain(*replies, tools=(store,), max_cost=max_cost).run("x")

    first, second = (step.observation for step in asking(5.5).steps[:2])
    assert first is not None
    assert second is not None
    assert first.inner[0].cost == 4  # its own budget was what the call itself left: 4.5
    assert second.executed is False
    assert "it would bring the cost to 6 of 5.5" in second.content


def test_a_share_is_a_share() -> None:
    for share in (0, 1.5, -1):
        with pytest.raises(UsageError, match="a share"):
            plain().as_tool("store", "Answers questions on the store.", share=share)


# --- stopping


def waiting() -> tuple[Tool, threading.Event, threading.Event]:
    """A tool that is called and waits; set when it is, and when it is let go."""
    begun, gone = threading.Event(), threading.Event()

    @tool(name="stock")
    def wait(article: str) -> str:
        """How many of an article are left in the store."""
        from localreact.tools import current_call

        begun.set()
        current_call().abandoned.wait(20)
        gone.set()
        return "late"

    return wait, begun, gone


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_stopping_the_outer_run_stops_the_inner_one(tmp_path: Path, how: str) -> None:
    tool_, begun, gone = waiting()
    inner = plain(call("stock", article="bolt"), finish("late"), tools=(tool_,))
    cancel = threading.Event()
    deadline = 1.0 if how == "deadline" else None
    agent = outer(inner, ask("store", "x"), missing("it"), trace=tmp_path, deadline=deadline, share=1)
    runs: list[Run] = []
    thread = threading.Thread(target=lambda: runs.append(agent.run("x", cancel)))
    thread.start()
    assert begun.wait(10)
    if how == "cancel":
        cancel.set()
    thread.join(10)
    assert gone.wait(10)
    assert runs[0].status == {"cancel": "cancelled", "deadline": "deadline"}[how]
    inner_traces = [path for path in tmp_path.glob("*.jsonl") if load(path).started.parent]
    wait_until(lambda: load(inner_traces[0]).ended is not None)
    assert len(inner_traces) == 1
    assert "late" not in json.dumps([str(step) for step in runs[0].steps])


def test_asking_the_outer_run_to_finish_asks_the_inner_one() -> None:
    inner = plain(finish("12"), evidence_gate=False)
    agent = outer(inner, ask("store", "x"), finish("12"))
    running = agent.stream("x")
    for event in running:
        if isinstance(event, ToolStarted):
            running.finish()
    run = running.outcome
    assert (run.status, run.reason) == ("partial", "interrupted")
    seen = run.steps[0].observation
    assert seen is not None
    assert seen.content == "12\n(partial: interrupted)"


def test_an_inner_run_that_nobody_waits_for_any_longer_counts_as_far_as_it_got() -> None:
    tool_, _, gone = waiting()
    inner = plain(call("stock", article="bolt"), finish("late"), tools=(tool_,))
    store = inner.as_tool("store", "Answers questions on the store.", timeout=0.5)
    run = plain(ask("store", "x"), missing("it"), tools=(store,)).run("x")
    seen = run.steps[0].observation
    assert seen is not None
    assert "no result within 0.5 seconds" in seen.content
    assert [each.status for each in seen.inner] == ["unfinished"]
    assert run.inner.generated == seen.inner[0].usage.generated
    assert gone.wait(10)


# --- traces


def test_a_run_with_inner_runs_is_replayed_and_resumed_without_them(tmp_path: Path) -> None:
    inner = plain(call("stock", article="bolt"), finish("12"))
    path = tmp_path / "outer.jsonl"
    assert (
        outer(inner, ask("store", "x"), EndpointError("gone"), trace=path).run("x").status == "endpoint_error"
    )
    before = load(path)
    assert replay(before).difference == ""
    run = outer(plain(), finish("12")).resume(path)  # a script without a reply: it isn't asked again
    assert (run.status, run.inner) == ("finished", before.ended.inner if before.ended else None)
    assert run.inner.generated > 0
    trace = load(path)
    assert replay(trace).difference == ""
    stats = stats_of(trace)
    assert stats.inner == run.inner
    assert stats.usage.generated == run.usage.generated
    within = next(e for e in trace.events if isinstance(e, ToolEnded)).observation.inner[0]
    text = page(trace)
    assert within.run_id in text
    assert Path(within.trace).name in text
    assert " for " in page(load(Path(within.trace)))


def test_an_inner_run_that_was_cut_off_by_a_crash_is_not_made_again(tmp_path: Path) -> None:
    @tool(effects=True)
    def take(article: str) -> str:
        """Take an article out of the store."""
        return "taken"

    def agents(*replies: str) -> Agent:
        inner = plain(call("take", article="bolt"), finish("taken"), tools=(take,))
        return outer(inner, *replies, trace=tmp_path / "outer.jsonl")

    path = tmp_path / "outer.jsonl"
    agents(ask("store", "take a bolt"), finish("taken")).run("x")
    lines = path.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if '"event": "ToolStarted"' in line)
    assert '"effects": true' in lines[at]  # since one of its tools has
    path.write_text("".join(lines[: at + 1]))
    run = agents(missing("whether it was taken")).resume(path)
    assert run.status == "insufficient"
    assert run.steps[0].observation is not None
    assert run.steps[0].observation.unknown


def test_an_agent_with_a_trace_of_its_own_keeps_its_runs_there(tmp_path: Path) -> None:
    inner = plain(call("stock", article="bolt"), finish("12"), trace=tmp_path / "inner")
    run = outer(inner, ask("store", "x"), finish("12"), trace=tmp_path / "outer").run("x")
    assert run.steps[0].observation is not None
    assert Path(run.steps[0].observation.inner[0].trace).parent == tmp_path / "inner"


# --- on models


def test_random_logits_ask_each_other_and_end(tiny: LlamaEndpoint) -> None:
    @tool
    def look(far: bool) -> str:
        """Look out of the window."""
        return "a ship on the horizon"

    inner = Agent(tiny, [look], examples=0, max_steps=3, sampling=Sampling(temperature=1.0))
    watch = inner.as_tool("watch", "Looks out of the window and tells what is there.")
    agent = Agent(tiny, [watch], examples=0, max_steps=4, sampling=Sampling(temperature=1.0, seed=1))
    run = agent.run("What is out there?")
    assert run.status not in ("endpoint_error", "protocol_loop"), run.reason
    made = [step.observation for step in run.steps if step.observation and step.observation.executed]
    assert all(each.inner for each in made if each.tool == "watch")
    assert run.usage.generated + run.inner.generated <= agent.budgets.max_tokens


@pytest.mark.slow
def test_the_embedded_model_asks_its_specialist(smollm2: LlamaEndpoint) -> None:
    sums = Agent(smollm2, load_tools(["calculator"], None))
    agent = Agent(smollm2, [sums.as_tool("sums", "Works out sums and products. Give it the whole question.")])
    running = agent.stream("What is 3*45+2*12?")
    ended = [event for event in running if isinstance(event, ToolEnded) and event.observation.inner]
    assert ended
    assert running.outcome.inner.generated > 0

"""Resuming: nothing that was recorded is done again, nothing that was begun is repeated."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localreact import Agent, Run, ScriptedEndpoint, Tool, tool
from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import EndpointError, TraceError, UsageError
from localreact.protocols import JsonProtocol
from localreact.tools.builtin import load_tools
from localreact.trace.events import RunStarted, StepStarted, ToolEnded, ToolStarted, TurnCompleted
from localreact.trace.jsonl import TraceWriter, read_trace
from localreact.trace.reading import load
from localreact.types import Finish, ToolCall

WRITE = JsonProtocol().write
PAY_1 = WRITE(ToolCall("I pay the first bill.", "pay", {"bill": "one", "sum": 0.12345678901}))
PAY_2 = WRITE(ToolCall("I pay the second bill.", "pay", {"bill": "two", "sum": 2}))
FINISH = WRITE(Finish("Both are paid now.", answer="paid"))
SCRIPT = [PAY_1, "It is paid.", PAY_2, FINISH]

NURSERY = """
import json, os, signal, sys
from pathlib import Path
from localreact import Agent, ScriptedEndpoint, tool
from localreact.trace.jsonl import TraceWriter

def work(trace, effects, replies, after, middle):
    written = 0
    write = TraceWriter.write

    def counted(self, event):
        nonlocal written
        write(self, event)
        written += type(event).__name__ not in ("TextDelta", "SpanWritten")
        if written == after and not middle:
            os.kill(os.getpid(), signal.SIGKILL)

    TraceWriter.write = counted

    @tool
    def pay(bill: str, sum: float) -> str:
        "Pay a bill."
        with open(effects, "a") as file:
            file.write(bill + "\\n")
        if written == after and middle:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"paid {bill}"

    agent = Agent(ScriptedEndpoint(replies), [pay], trace=trace)
    run = agent.resume(trace) if Path(trace).exists() else agent.run("Pay both bills.")
    return [run.status, run.answer, run.usage.generated, [step.number for step in run.steps]]

for line in sys.stdin:
    child = os.fork()
    if not child:
        print(json.dumps(work(*json.loads(line))), flush=True)
        os._exit(0)
    print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])), flush=True)
"""

Sitting = Callable[..., Any]


@pytest.fixture(scope="module")
def sitting() -> Iterator[Sitting]:
    """Lets a process work on the run until its n-th event, or to the end; gives what came out."""
    nursery = subprocess.Popen(
        [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    wanted, came = nursery.stdin, nursery.stdout

    def work(trace: Path, effects: Path, replies: list[str], after: int = 0, middle: bool = False) -> Any:
        wanted.write(json.dumps([str(trace), str(effects), replies, after, middle]) + "\n")
        wanted.flush()
        outcome = json.loads(came.readline())
        if after and outcome != -9:
            raise AssertionError(f"not killed: {outcome}")
        if not after:
            assert json.loads(came.readline()) == 0
        return outcome

    yield work
    wanted.close()
    came.close()
    nursery.wait()


def left(trace: Path) -> list[str]:
    """The script without what the trace already holds."""
    made = sum(record["event"] == "TurnCompleted" for record in read_trace(trace))
    return SCRIPT[made:]


# a run of SCRIPT has 18 events; where a call is under way, also in the middle of it
KILLS = [(n, False) for n in range(1, 19)] + [(5, True), (13, True)]


@pytest.mark.parametrize(("after", "middle"), KILLS)
def test_a_run_killed_at_any_event_is_readable_and_resumes_without_repeating_anything(
    tmp_path: Path, sitting: Sitting, after: int, middle: bool
) -> None:
    trace, effects = tmp_path / "run.jsonl", tmp_path / "effects"
    sitting(trace, effects, SCRIPT, after, middle)
    killed = load(trace)
    assert len(killed.entries) == after
    if after == 18:
        assert killed.ended is not None
        return
    before = effects.read_text() if effects.exists() else ""
    outcome = sitting(trace, effects, left(trace))
    assert outcome == ["finished", "paid", outcome[2], [1, 2, 3, 4]]
    made = effects.read_text().split()
    assert len(made) == len(set(made))
    whole = load(trace)
    under_way = isinstance(killed.entries[-1].event, ToolStarted)
    results = [e.observation for e in whole.events if isinstance(e, ToolEnded)]
    assert [bool("outcome is unknown" in each.content) for each in results].count(True) == under_way
    if not under_way:
        assert made == ["one", "two"]
    assert effects.read_text().startswith(before)
    assert whole.ended is not None
    assert whole.ended.usage.generated == outcome[2] == sum(-(-len(text) // 4) for text in SCRIPT)


def test_a_run_killed_again_and_again_gets_to_its_end(tmp_path: Path, sitting: Sitting) -> None:
    trace, effects = tmp_path / "run.jsonl", tmp_path / "effects"
    sitting(trace, effects, SCRIPT, 3)
    for _ in range(6):  # each sitting writes its RunStarted and two events
        sitting(trace, effects, left(trace), 3)
    last = WRITE(Finish("I can't know it.", missing="whether the bills are paid"))
    assert sitting(trace, effects, [last])[0] == "insufficient"  # both calls have an unknown outcome
    assert not effects.exists()
    events = load(trace).events
    assert sum(isinstance(event, RunStarted) for event in events) == 8


def pay(bill: str, sum: float) -> str:
    """Pay a bill."""
    return f"paid {bill}"


def stopped(path: Path, *replies: str | BaseException, **options: Any) -> Run:
    agent = Agent(ScriptedEndpoint([*replies, EndpointError("gone")]), [pay], trace=path, **options)
    run = agent.run("Pay both bills.")
    assert run.status == "endpoint_error"
    return run


def resumed(path: Path, *replies: str | BaseException, **options: Any) -> tuple[Run, ScriptedEndpoint]:
    endpoint = ScriptedEndpoint(replies)
    return Agent(endpoint, [pay], **options).resume(path), endpoint


def test_the_prompt_of_a_resumed_run_is_the_one_it_would_have_been(tmp_path: Path) -> None:
    straight = ScriptedEndpoint(SCRIPT)
    Agent(straight, [pay]).run("Pay both bills.")
    stopped(tmp_path / "run.jsonl", *SCRIPT[:3])
    run, endpoint = resumed(tmp_path / "run.jsonl", FINISH)
    assert endpoint.prompts == straight.prompts[3:]
    assert (run.status, len(run.steps)) == ("finished", 4)
    assert [r["event"] for r in read_trace(tmp_path / "run.jsonl")][-6:] == [
        *("RunEnded", "RunStarted", "StepStarted", "TurnCompleted", "TurnRead", "RunEnded")
    ]


def test_budgets_count_what_was_used_before(tmp_path: Path) -> None:
    stopped(tmp_path / "run.jsonl", *SCRIPT[:3])
    run, _ = resumed(tmp_path / "run.jsonl", FINISH, max_steps=4)
    assert (run.status, run.reason) == ("partial", "max_steps")


def test_time_that_was_used_counts_for_the_deadline(tmp_path: Path) -> None:
    stopped(tmp_path / "run.jsonl", PAY_1)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    for line in lines[3:]:
        line["at"] += 100
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert resumed(tmp_path / "run.jsonl", FINISH, deadline=90)[0].status == "deadline"
    assert resumed(tmp_path / "run.jsonl", FINISH, deadline=150)[0].status == "finished"


def test_a_run_that_has_its_answer_is_not_resumed(tmp_path: Path) -> None:
    Agent(ScriptedEndpoint(SCRIPT), [pay], trace=tmp_path / "run.jsonl").run("Pay both bills.")
    with pytest.raises(UsageError, match=r"has ended \(finished\): there is nothing to resume"):
        resumed(tmp_path / "run.jsonl")


def test_other_tools_another_protocol_or_model_are_told(tmp_path: Path, stock: Tool) -> None:
    path = tmp_path / "run.jsonl"
    stopped(path, PAY_1)
    whole = path.read_bytes()
    with pytest.raises(UsageError, match="tools: recorded pay; now stock"):
        Agent(ScriptedEndpoint([]), [stock]).resume(path)
    with pytest.raises(UsageError, match="protocol: recorded react-json/1; now react-text/1"):
        resumed(path, protocol="text")

    @tool(name="pay", description="Pay a bill.")
    def pay_all(bill: str) -> str:
        return "paid"

    with pytest.raises(UsageError, match="the tools' parameters"):
        Agent(ScriptedEndpoint([]), [pay_all]).resume(path)
    with pytest.raises(UsageError, match=r"step 1 isn't as recorded\. prompt"):
        resumed(path, examples=0)
    other = ScriptedEndpoint([FINISH])
    other.fingerprint = "another"
    with pytest.raises(UsageError, match="--other-model"):
        Agent(other, [pay]).resume(path)
    assert path.read_bytes() == whole
    assert Agent(other, [pay]).resume(path, other_model=True).status == "finished"


def test_a_run_that_still_goes_on_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    running = Agent(ScriptedEndpoint(SCRIPT), [pay], trace=path).stream("Pay both bills.")
    next(event for event in running if isinstance(event, ToolEnded))
    with pytest.raises(TraceError, match="still goes on"):
        resumed(path, FINISH)
    running.close()
    assert resumed(path, *SCRIPT[1:])[0].status == "finished"


def test_a_trace_that_was_written_to_since_it_was_read_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    stopped(path, PAY_1)
    running = Agent(ScriptedEndpoint(SCRIPT[1:]), [pay]).stream_resumed(path)
    assert resumed(path, *SCRIPT[1:])[0].status == "finished"
    with pytest.raises(TraceError, match="written to meanwhile"):
        next(running)


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_last_line_that_a_crash_cut_short_is_dropped(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "run.jsonl"
    stopped(path, PAY_1)
    ends = path.read_bytes().splitlines(keepends=True)[:-1]  # without RunEnded
    path.write_bytes(b"".join(ends)[:-cut])
    assert resumed(path, *SCRIPT[1:])[0].status == "finished"
    assert load(path).cut == 0


def test_a_turn_that_was_broken_off_counts_and_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    stopped(path, PAY_1)
    lines = path.read_text().splitlines(keepends=True)
    broken = json.loads(lines[2]) | {"step": 2}
    broken["completion"] |= {"stop": "cancelled", "text": '{"thou'}
    path.write_text("".join([*lines[:-1], json.dumps(broken) + "\n", lines[-1]]))
    run, _ = resumed(path, FINISH)
    assert run.status == "finished"
    assert run.usage.generated == 2 * -(-len(PAY_1) // 4) + -(-len(FINISH) // 4)


def test_a_run_asked_to_finish_answers_from_what_there_is(tmp_path: Path) -> None:
    agent = Agent(ScriptedEndpoint([PAY_1, FINISH]), [pay], trace=tmp_path / "run.jsonl")
    running = agent.stream("Pay both bills.")
    steps = []
    for event in running:
        if isinstance(event, ToolEnded):
            running.finish()
        if isinstance(event, StepStarted):
            steps.append(event)
    run = running.outcome
    assert (run.status, run.reason, run.answer) == ("partial", "interrupted", "paid")
    assert (steps[-1].tools, steps[-1].closing) == ((), "interrupted")


def test_a_call_that_was_being_written_when_asked_to_finish_is_not_made(tmp_path: Path) -> None:
    made = []

    @tool(name="pay")
    def spy(bill: str, sum: float) -> str:
        """Pay a bill."""
        made.append(bill)
        return "paid"

    path = tmp_path / "run.jsonl"
    last = WRITE(Finish("Nothing is paid yet.", missing="the second payment"))
    running = Agent(ScriptedEndpoint([PAY_1, PAY_2, last]), [spy], trace=path).stream("Pay both bills.")
    for event in running:
        if isinstance(event, TurnCompleted) and event.step == 2:
            running.finish()
    run = running.outcome
    assert (run.status, run.reason, made) == ("insufficient", "interrupted", ["one"])
    cut = path.read_bytes().splitlines(keepends=True)[:-3]
    path.write_bytes(b"".join(cut))  # killed in the last turn: a resumed run goes on with its tools
    resumed = Agent(ScriptedEndpoint([PAY_2, FINISH]), [spy]).resume(path)
    assert (resumed.status, made) == ("finished", ["one", "two"])


@pytest.mark.parametrize("last", ["ToolEnded", "GuardActed"])
def test_what_checks_said_is_recorded_and_later_answers_are_checked(tmp_path: Path, last: str) -> None:
    """A check may look at the world, which goes on while a run is stopped."""
    path, said = tmp_path / "run.jsonl", ["say it twice", "", "say it once", ""]
    once, twice = (WRITE(Finish("It is paid now.", answer=answer)) for answer in ("paid", "paid, paid"))

    def moody(run: Run) -> str:
        return said.pop(0)

    Agent(ScriptedEndpoint([PAY_1, once, twice]), [pay], trace=path, checks=[moody]).run("Pay both bills.")
    assert len(said) == 2
    lines = path.read_text("utf-8").splitlines(keepends=True)
    end = max(number for number, line in enumerate(lines) if f'"{last}"' in line)
    path.write_text("".join(lines[: end + 1]), "utf-8")  # killed before the answer that was accepted
    run = Agent(ScriptedEndpoint([twice, once]), [pay], checks=[moody]).resume(path)
    assert (run.status, run.answer, said) == ("finished", "paid", [])
    assert [step.unmet for step in run.steps] == [False, True, True, False]


def test_the_real_model_goes_on_with_the_same_tokens(smollm2: LlamaEndpoint, tmp_path: Path) -> None:
    agent = Agent(smollm2, load_tools(["calculator"], None), trace=tmp_path / "run.jsonl")
    straight = agent.run("What is 3*45+2*12?")
    whole = load(tmp_path / "run.jsonl")
    call = next(n for n, entry in enumerate(whole.entries) if isinstance(entry.event, ToolEnded))
    lines = (tmp_path / "run.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run.jsonl").write_bytes(b"".join(lines[: call + 1]))
    run = agent.resume(tmp_path / "run.jsonl")
    assert (run.answer, run.steps[-1].turn) == (straight.answer, straight.steps[-1].turn)
    assert run.usage.sampled == straight.usage.sampled
    again = load(tmp_path / "run.jsonl")
    texts = [[e.completion.tokens for e in t.events if isinstance(e, TurnCompleted)] for t in (whole, again)]
    assert texts[0] == texts[1]


def test_traces_of_older_versions_can_be_resumed(tmp_path: Path, stock: Tool) -> None:
    old = Path(__file__).parent / "trace" / "data" / "v1-killed.jsonl"
    path = tmp_path / "run.jsonl"
    path.write_bytes(old.read_bytes())
    found = WRITE(Finish("I know it now.", answer="3"))
    run = Agent(ScriptedEndpoint([found]), [stock]).resume(path)
    assert (run.status, run.answer, len(run.steps)) == ("finished", "3", 3)


def test_one_trace_has_one_writer(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "run.jsonl"), pytest.raises(TraceError, match="still goes on"):
        TraceWriter(tmp_path / "run.jsonl")


def test_a_run_whose_context_was_full_goes_on_from_the_same_prompt(tmp_path: Path) -> None:
    """With what was recalled for it then, though the archive has more by now."""

    def reader() -> Tool:
        pages = (f"Entry {n}: on day {n * 37} the ship lay {n * 11} miles off Cape {n}." for n in range(99))

        @tool
        def read(page: str) -> str:
            """Read on in the book."""
            return next(pages)

        return read

    turns = [WRITE(ToolCall("I read on now.", "read", {"page": str(n)})) for n in range(20)]
    options: dict[str, Any] = {"examples": 0, "max_steps": 30, "archive": tmp_path / "archive.db"}
    question = "What does the book say of the ship?"
    Agent(ScriptedEndpoint([turns[0], FINISH]), [reader()], **options).run(question)
    whole = ScriptedEndpoint([*turns, FINISH], n_ctx=1000)
    path = tmp_path / "run.jsonl"
    running = Agent(whole, [reader()], trace=path, **options).stream(question)
    assert list(running)
    lines = path.read_text("utf-8").splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if '"StepStarted"' in line and '"step": 15' in line)
    assert any('"Compacted"' in line for line in lines[:at])
    path.write_text("".join(lines[: at + 1]), "utf-8")
    rest = ScriptedEndpoint([*turns[14:], FINISH], n_ctx=1000)
    tools = reader()
    for _ in range(14):
        tools(page="x")
    run = Agent(rest, [tools], **options).resume(path)
    assert (run.status, len(run.steps)) == ("finished", 21)
    assert "From earlier runs" in rest.prompts[0].text
    assert rest.prompts == whole.prompts[14:]

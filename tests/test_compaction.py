"""Long runs in small contexts: older steps in short, the question and the last steps whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localreact import Agent, Run, ScriptedEndpoint, Tool, compaction, policy, tool
from localreact.context import Transcript
from localreact.endpoints.chat import TRANSCRIPT
from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.resolve import open_endpoint
from localreact.errors import EndpointError, GrammarError, UsageError
from localreact.guards import Guards
from localreact.protocols import JsonProtocol, protocol
from localreact.replay import replay
from localreact.run import Digest, RunState, Step
from localreact.trace.events import (
    Compacted,
    Event,
    RunEnded,
    StepStarted,
    ToolEnded,
    ToolStarted,
    TurnCompleted,
)
from localreact.trace.reading import load
from localreact.trace.steps import stats_of
from localreact.types import (
    Evidence,
    Finish,
    Observation,
    Prompt,
    Sampling,
    Segment,
    Timings,
    ToolCall,
    TurnSpec,
    Usage,
)

WRITE = JsonProtocol().write
QUESTION = "What stands in the last entry?"
PATIENT = Guards(repeats=99, rephrased=99, stuck=99)


@pytest.fixture
def read() -> Tool:
    numbers = itertools.count(1)

    @tool
    def read(page: str) -> str:
        """Read on in the book."""
        return entry(next(numbers))

    return read


def entry(number: int) -> str:
    where = f"on day {number * 37} the ship lay {number * 11} miles off Cape {number}"
    return f"Entry {number}: {where}; the wind was {number} knots, from the {number}th quarter."


def calls(count: int) -> list[str]:
    return [WRITE(ToolCall(f"I read page {n} now.", "read", {"page": f"p{n}"})) for n in range(1, count + 1)]


def finish(*evidence: Evidence) -> str:
    return WRITE(Finish("I know it now.", answer="3", evidence=evidence))


def scripted(read: Tool, *replies: str, **options: Any) -> tuple[Run, list[Event], ScriptedEndpoint]:
    endpoint = ScriptedEndpoint(replies, n_ctx=options.pop("n_ctx", 1000))
    running = Agent(endpoint, [read], **{"max_steps": 60, "examples": 0, **options}).stream(QUESTION)
    events = list(running)
    return running.outcome, events, endpoint


def prompts_of(events: Sequence[Event]) -> Iterator[tuple[Segment, ...]]:
    """The prompts as a trace has them: what each step adds, and what compacting leaves."""
    prompt: tuple[Segment, ...] = ()
    for event in events:
        if isinstance(event, Compacted):
            prompt = prompt[: event.kept]
        elif isinstance(event, StepStarted):
            prompt += event.prompt
            yield prompt


def test_a_long_run_goes_on_in_a_small_context(read: Tool) -> None:
    run, events, endpoint = scripted(read, *calls(40), finish())
    assert (run.status, len(run.steps)) == ("finished", 41)
    compacted = [event for event in events if isinstance(event, Compacted)]
    assert 2 <= len(compacted) <= 10
    assert all(event.after < event.before for event in compacted)
    for prompt in endpoint.prompts:
        assert endpoint.count(prompt) < 1000
        assert QUESTION in prompt.text
        assert "read(page)" in prompt.text
    last = endpoint.prompts[-1].text
    assert last.count(compaction.HEAD) == 1
    assert entry(40) in last
    assert entry(39) in last
    assert "- steps 1 to " in last
    assert all(step.observation and "Cape" in step.observation.content for step in run.steps[:-1])


def test_older_steps_are_lines_and_the_last_ones_stay_as_they_were(read: Tool) -> None:
    _, events, endpoint = scripted(read, *calls(40), finish(), keep_steps=3, n_ctx=2000)
    begun = [event for event in events if isinstance(event, StepStarted | Compacted)]
    first = next(event for event in begun if isinstance(event, Compacted))
    text = endpoint.prompts[begun.index(first)].text  # the prompt that comes next
    told = f"- step {first.told}: I read page {first.told} now. read {{"
    assert f'{told}"page": "p{first.told}"}} → {entry(first.told)[:70]}' in text
    for number in range(1, first.step):
        whole = WRITE(ToolCall(f"I read page {number} now.", "read", {"page": f"p{number}"})) in text
        assert whole == (number > first.told)
    assert first.step - 1 - first.told == 3


def test_a_trace_has_what_it_takes_to_build_every_prompt(read: Tool) -> None:
    _, events, endpoint = scripted(read, *calls(30), finish())
    assert [prompt.segments for prompt in endpoint.prompts] == list(prompts_of(events))


def test_between_compactions_every_prompt_begins_with_the_one_before_it(read: Tool) -> None:
    _, events, endpoint = scripted(read, *calls(30), finish())
    kept = {}
    for event in events:
        if isinstance(event, Compacted):
            kept[event.step] = event.kept
    steps = [event.step for event in events if isinstance(event, StepStarted)]
    for number, (before, after) in zip(steps, itertools.pairwise(endpoint.prompts), strict=False):
        length = min([len(before.segments), *(kept[n] for n in (number, number + 1) if n in kept)])
        assert after.segments[:length] == before.segments[:length]


def test_without_need_nothing_is_compacted(read: Tool) -> None:
    _, events, _ = scripted(read, *calls(30), finish(), n_ctx=100_000)
    assert not [event for event in events if isinstance(event, Compacted)]


def test_a_budget_for_the_prompt_holds_below_the_context(read: Tool) -> None:
    run, events, endpoint = scripted(read, *calls(30), finish(), n_ctx=100_000, max_context=800)
    assert run.status == "finished"
    assert max(map(endpoint.count, endpoint.prompts)) < 800
    assert [event for event in events if isinstance(event, Compacted)]


def test_texts_that_were_no_turn_leave_no_trace_in_the_digest(read: Tool) -> None:
    prose = "PROSE that is no turn at all"
    run, _, endpoint = scripted(read, *calls(6), prose, *calls(12), finish())
    assert run.status == "finished"
    assert all("PROSE" not in prompt.text for prompt in endpoint.prompts)
    refused = Step(1, None, None, Usage(), Timings(), "refused")
    assert compaction.digest(Digest(), [refused], 0, 1, 1000).lines == ("\n- step 1: no turn",)


def test_a_large_result_gets_a_quarter_of_the_context(read: Tool) -> None:
    @tool
    def book(page: str) -> str:
        """Read a page."""
        return f"page {page}: " + "many words " * 400

    replies = [WRITE(ToolCall("I read on now.", "book", {"page": str(n)})) for n in range(9)]
    endpoint = ScriptedEndpoint([*replies, finish()], n_ctx=1200)
    run = Agent(endpoint, [book], max_steps=20, examples=0, guards=PATIENT).run(QUESTION)
    assert run.status == "finished"
    shown = [step.shown for step in run.steps if step.observation]
    assert all(text is not None and len(text) > 1000 for text in shown)


def test_what_is_in_short_can_be_cited_as_far_as_it_stands_there(read: Tool) -> None:
    run, events, _ = scripted(read, *calls(12), finish(), cite=True, n_ctx=1100)
    told = max(event.told for event in events if isinstance(event, Compacted))
    left_out = max(event.left_out for event in events if isinstance(event, Compacted))
    last = [event for event in events if isinstance(event, StepStarted)][-1]
    assert 0 < left_out < told < 11
    assert last.sources[0] == left_out + 1
    in_short, whole = f"Entry {told}: on day {told * 37}", f"from the {told}th quarter."
    for quote, accepted in ((in_short, True), (whole, False), ("Entry 12: on day", True)):
        again = [*calls(12), finish(Evidence(12 if "12:" in quote else told, quote))]
        numbers = itertools.count(1)

        @tool(name="read")
        def fresh(page: str) -> str:
            """Read on in the book."""
            return entry(next(numbers))  # noqa: B023

        run, *_ = scripted(fresh, *again, cite=True, n_ctx=1100)
        assert (run.status == "finished") == accepted, quote


def test_what_is_left_out_cannot_be_cited() -> None:
    state = RunState("q")
    for number in (1, 2, 3):
        seen = Observation("read", f"What entry {number} says, word for word.")
        state.steps.append(Step(number, ToolCall("", "read", {}), seen, Usage(), Timings()))
    assert [source.step for source in state.sources] == [1, 2, 3]
    state.digest = Digest(left_out=1, told=2, shown={2: "What entry 2…"})
    assert [(source.step, source.text) for source in state.sources] == [
        (2, "What entry 2"),
        (3, "What entry 3 says, word for word."),
    ]


def test_the_digest_leaves_its_oldest_lines_out_when_it_grows_too_long() -> None:
    said = Observation("do", "done " * 50)
    steps = [
        Step(n, ToolCall(f"I do thing {n}.", "do", {"n": n}), said, Usage(), Timings()) for n in range(1, 41)
    ]
    digest, dropped = Digest(), []
    for told in range(3, 41, 3):
        before = digest
        digest = compaction.longer(digest, steps, told, 4096, lambda text: len(text) // 4)
        assert sum(map(len, digest.lines)) // 4 <= 4096 // compaction.SHARE
        assert len(digest.lines) == told - digest.left_out == len(digest.shown)
        if digest.left_out == before.left_out:
            assert digest.lines[: len(before.lines)] == before.lines
        dropped.append(digest.left_out)
    assert dropped[:3] == [0, 0, 0]
    assert dropped == sorted(dropped)
    assert dropped[-1] > 0


def test_compacting_a_transcript_keeps_the_turns_token_ids() -> None:
    transcript = Transcript(TRANSCRIPT, [Segment("system")])
    transcript.ask([Segment("the question")])
    for number in (1, 2, 3):
        transcript.model(f"turn {number}", tokens=(number,))
        transcript.user([Segment(f"result {number}")])
    transcript.take_new()
    assert transcript.compact([Segment("told")], 1) == 4
    assert "".join(segment.text for segment in transcript.take_new()).startswith("told\n\nAssistant: turn 3")
    assert transcript.prompt.text == (
        "system\n\nUser: the questiontold\n\nAssistant: turn 3\n\nUser: result 3\n\nAssistant: "
    )
    assert (3,) in [segment.tokens for segment in transcript.prompt.segments]
    assert transcript.exchanges == 1


def test_keeping_less_than_no_step_is_refused() -> None:
    with pytest.raises(UsageError, match="keep_steps"):
        Agent(ScriptedEndpoint([]), keep_steps=-1)


# --- summed up by the model

NOTED = WRITE(Finish("I sum up.", answer="On day 37 the ship lay 11 miles off Cape 1, and went on since."))


def summed(read: Tool, count: int, noted: str = NOTED, **options: Any) -> tuple[Run, list[Event], Asked]:
    endpoint = Asked(calls(count), noted, options.pop("n_ctx", 1000))
    options = {"max_steps": 60, "examples": 0, "summaries": True, **options}
    running = Agent(endpoint, [read], **options).stream(QUESTION)
    events = list(running)
    return running.outcome, events, endpoint


class Asked(ScriptedEndpoint):
    """Says `noted` wherever it is asked to sum up, and its replies and then an answer elsewhere."""

    def __init__(self, replies: Sequence[str], noted: str | BaseException, n_ctx: int) -> None:
        super().__init__(self._said([*replies, finish()]), n_ctx)
        self._noted = noted

    def _said(self, replies: Sequence[str]) -> Iterator[str | BaseException]:
        for reply in replies:
            while self.prompts[-1].text.rpartition("User: ")[2].startswith(compaction.ASK):
                yield self._noted
            yield reply

    @property
    def turns(self) -> list[Prompt]:
        return [prompt for prompt in self.prompts if compaction.ASK not in prompt.text]

    @property
    def asked(self) -> list[Prompt]:
        return [prompt for prompt in self.prompts if compaction.ASK in prompt.text]


def test_the_model_sums_older_steps_up_where_it_is_asked_to(read: Tool) -> None:
    run, events, endpoint = summed(read, 40)
    assert (run.status, len(run.steps)) == ("finished", 41)
    compacted = [event for event in events if isinstance(event, Compacted)]
    assert len(compacted) >= 2
    assert all(event.summary and event.left_out == event.told for event in compacted)
    assert len(endpoint.asked) == len(compacted)
    last = endpoint.turns[-1].text
    assert last.count(compaction.SUMMARY) == 1
    assert "On day 37 the ship lay" in last
    assert compaction.HEAD not in last
    assert entry(40) in last
    assert QUESTION in last
    assert all(endpoint.count(prompt) < 1000 for prompt in endpoint.prompts)
    assert [prompt.segments for prompt in endpoint.turns] == list(prompts_of(events))


def test_a_summary_begins_with_what_is_evaluated_already_and_keeps_nothing(read: Tool) -> None:
    _, _, endpoint = summed(read, 20)
    for asked in endpoint.asked:
        before = endpoint.prompts[endpoint.prompts.index(asked) - 1]
        assert asked.segments[: len(before.segments)] == before.segments
        assert asked.shared == before.shared
        assert not asked.segments[-2].tokens


def test_summaries_are_the_models_word_and_cannot_be_cited(read: Tool) -> None:
    _, events, _ = summed(read, 20, cite=True, n_ctx=1200)
    told = [event.told for event in events if isinstance(event, Compacted)]
    last = [event for event in events if isinstance(event, StepStarted)][-1]
    assert told
    assert min(last.sources) == told[-1] + 1


def test_summaries_count(read: Tool) -> None:
    run, events, _ = summed(read, 40)
    made = [event.summary for event in events if isinstance(event, Compacted) and event.summary]
    turns = [event.completion for event in events if isinstance(event, TurnCompleted)]
    assert run.usage == sum((each.usage for each in made + turns), Usage())
    assert run.usage.sampled > sum(step.usage.sampled for step in run.steps)


@pytest.mark.parametrize("noted", ["prose", "", WRITE(ToolCall("I read on.", "read", {"page": "x"}))])
def test_where_nothing_comes_of_a_summary_there_are_lines(read: Tool, noted: str) -> None:
    run, events, endpoint = summed(read, 20, noted)
    assert run.status == "finished"
    made = [event.summary for event in events if isinstance(event, Compacted) and event.summary]
    assert len(made) == len(endpoint.asked) > 0
    usages = [each.usage for each in made] + [each.usage for each in run.steps]
    assert run.usage == sum(usages, Usage())
    assert compaction.HEAD in endpoint.turns[-1].text
    assert noted == "" or noted not in endpoint.turns[-1].text


def test_lines_may_come_after_a_summary() -> None:
    steps = [Step(n, ToolCall(f"thought {n}", "read", {}), None, Usage(), Timings()) for n in range(1, 9)]
    before = compaction.summed_up("The gist.", steps, 4)
    after = compaction.digest(before, steps, 6, 8, 1000)
    text = "".join(segment.text for segment in compaction.segments(after))
    assert text.startswith(
        f"{compaction.SUMMARY}The gist.{compaction.HEAD}\n- steps 5 to 6: left out\n- step 7"
    )


def test_a_run_that_was_summed_up_is_replayed_and_resumed(tmp_path: Path, read: Tool) -> None:
    path = tmp_path / "run.jsonl"
    run, _, straight = summed(read, 30, trace=path)
    assert replay(load(path)).difference == ""
    stats = stats_of(load(path))
    assert stats.usage == run.usage
    lines = path.read_text("utf-8").splitlines(keepends=True)
    compacted = [n for n, line in enumerate(lines) if '"event": "Compacted"' in line]
    for at in [next(n for n in range(at, len(lines)) if '"StepStarted"' in lines[n]) for at in compacted]:
        (tmp_path / "cut.jsonl").write_text("".join(lines[:at]), "utf-8")
        made = sum('"TurnCompleted"' in line for line in lines[:at])
        rest = Asked(calls(30)[made:], NOTED, 1000)
        numbers = itertools.count(made + 1)

        @tool(name="read")
        def on(page: str) -> str:
            """Read on in the book."""
            return entry(next(numbers))  # noqa: B023

        agent = Agent(rest, [on], max_steps=60, examples=0, summaries=True)
        resumed = agent.resume(tmp_path / "cut.jsonl")
        assert (resumed.status, len(resumed.steps)) == ("finished", 31)
        assert rest.prompts == straight.prompts[-len(rest.prompts) :]
        assert replay(load(tmp_path / "cut.jsonl")).difference == ""


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (EndpointError("connection refused"), "endpoint_error"),
        (GrammarError("no such turn"), "endpoint_error"),
        (KeyboardInterrupt(), "cancelled"),
        (None, "cancelled"),  # the stream is closed once the model has summed up
    ],
)
def test_a_call_that_was_made_is_told_whatever_keeps_its_result_from_the_model(
    tmp_path: Path, failure: BaseException | None, status: str
) -> None:
    path, pages = tmp_path / "run.jsonl", []

    @tool(effects=True)
    def read(page: str) -> str:
        """Read on in the book."""
        pages.append(page)
        return entry(len(pages))

    options: dict[str, Any] = {"max_steps": 60, "examples": 0, "summaries": True}
    noted = failure or NOTED
    running = Agent(Asked(calls(30), noted, 1000), [read], trace=path, **options).stream(QUESTION)
    before: list[Event] = []
    for event in running:
        if failure is None and isinstance(event, Compacted) and isinstance(before[-1], ToolStarted):
            break
        before.append(event)
    running.close()
    made, recorded = len(pages), load(path)
    *_, called, ended, end = (e for e in recorded.events if not isinstance(e, Compacted))
    assert isinstance(called, ToolStarted)
    assert isinstance(ended, ToolEnded)
    assert (ended.step, ended.observation.content) == (made, entry(made))
    assert isinstance(end, RunEnded)
    assert (end.status, end.steps) == (status, made)
    if failure is not None:
        assert running.outcome.steps[-1].observation == ended.observation
    assert replay(recorded).difference == ""
    run = Agent(Asked(calls(30)[made:], NOTED, 1000), [read], **options).resume(path)
    assert (run.status, len(pages)) == ("finished", 30)
    assert not any(step.observation.unknown for step in run.steps if step.observation)


# --- on models


def only_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bar every ending, so that a run goes on for as long as it is let."""
    legal = policy._legal

    def barred(*arguments: Any) -> TurnSpec:
        spec = legal(*arguments)
        return replace(spec, answer=False, insufficient=False) if spec.tools else spec

    monkeypatch.setattr(policy, "_legal", barred)


def new_and_evaluated(endpoint: LlamaEndpoint, events: Sequence[Event]) -> tuple[int, int]:
    """Tokens that were new in a run (the opening, turns, results), and tokens that were evaluated."""
    new = evaluated = 0
    compacted = False
    for event in events:
        if isinstance(event, Compacted):
            compacted = True
        elif isinstance(event, StepStarted):
            # After compacting only the last result, between its delimiters, wasn't in a prompt before.
            fresh = event.prompt[-5:] if compacted else event.prompt
            new += endpoint.count(Prompt(tuple(s for s in fresh if not s.tokens)))
            compacted = False
        elif isinstance(event, TurnCompleted):
            usage = event.completion.usage
            new += usage.generated
            evaluated += usage.prompt - usage.reused + usage.generated
    return new, evaluated


@pytest.mark.slow
def test_fifty_steps_in_2048_tokens_on_the_real_model(monkeypatch: pytest.MonkeyPatch, read: Tool) -> None:
    only_calls(monkeypatch)
    endpoint = open_endpoint("smollm2", 2048)
    assert isinstance(endpoint, LlamaEndpoint)
    agent = Agent(endpoint, [read], max_steps=50, max_tokens=20_000, guards=PATIENT)
    running = agent.stream(QUESTION)
    events = list(running)
    run = running.outcome
    new, evaluated = new_and_evaluated(endpoint, events)
    endpoint.close()
    assert len(run.steps) == 50
    assert run.status in ("finished", "partial")
    assert [event for event in events if isinstance(event, Compacted)]
    assert all(step.usage.prompt + step.usage.generated <= 2048 for step in run.steps)
    assert evaluated <= 1.5 * new


@pytest.mark.slow
def test_the_embedded_model_sums_up_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, smollm2: LlamaEndpoint, read: Tool
) -> None:
    only_calls(monkeypatch)
    options: dict[str, Any] = {"max_steps": 12, "max_context": 640, "examples": 0, "max_turn_tokens": 120}
    running = Agent(smollm2, [read], summaries=True, guards=PATIENT, **options).stream(QUESTION)
    events = list(running)
    assert len(running.outcome.steps) == 12
    noted = [event.summary for event in events if isinstance(event, Compacted) and event.summary]
    texts = [compaction.text_of(each, protocol("json", smollm2.card.spelling)) for each in noted]
    assert texts
    assert all(texts)
    assert all(len(text) <= compaction.turn(640).answer_max for text in texts)
    assert all(step.usage.prompt + step.usage.generated <= 640 for step in running.outcome.steps)


@pytest.mark.parametrize("summaries", [False, True])
def test_random_logits_go_on_in_a_small_context(
    monkeypatch: pytest.MonkeyPatch, tiny_gguf: Any, summaries: bool
) -> None:
    only_calls(monkeypatch)
    numbers = itertools.count(1)

    @tool
    def look(far: bool) -> str:
        """Look."""
        number = next(numbers)
        return f"ship {number} at {number * 11} miles, sail {number * 3}"

    endpoint = LlamaEndpoint(tiny_gguf, n_ctx=1024 if summaries else 512, n_threads=1)
    agent = Agent(
        endpoint,
        [look],
        max_steps=30,
        max_tokens=20_000,
        max_turn_tokens=200,
        examples=0,
        guards=PATIENT,
        sampling=Sampling(temperature=1.0),
        summaries=summaries,
    )
    running = agent.stream("Go on.")
    events = list(running)
    assert running.outcome.status in ("partial", "insufficient", "max_steps")
    assert len(running.outcome.steps) == 30
    compacted = [event for event in events if isinstance(event, Compacted)]
    assert compacted
    assert any(event.summary for event in compacted) == summaries
    endpoint.close()

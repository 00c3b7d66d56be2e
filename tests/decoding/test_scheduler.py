from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localreact.agent import Agent
from localreact.decoding.context import Context, Logits, Part
from localreact.decoding.loop import TurnWriter
from localreact.decoding.samplers import Sampler
from localreact.endpoints.base import whole
from localreact.endpoints.cards import cards
from localreact.endpoints.llama import LlamaEndpoint
from localreact.engines.free import FreeMatcher
from localreact.errors import EndpointError, GrammarError, UsageError
from localreact.tools.builtin import load_tools
from localreact.types import Completion, Limits, Prompt, Sampling, Segment, TurnGrammar
from tests.tiny import write_tiny_gguf

LETTERS = TurnGrammar("lark", "start: /[a-z]{30,30}/")
ENDLESS = TurnGrammar("lark", "start: /[a-z]{3000,3000}/")
SHARED = (
    Segment("<|im_start|>", trusted=True),
    Segment("Answer in letters. " * 12),
    Segment("<|im_end|>", trusted=True),
)
OPENING = Prompt(SHARED)


def prompt(text: str, shared: bool = True) -> Prompt:
    return Prompt((*SHARED, Segment(text), Segment("<|im_end|>", trusted=True)), len(SHARED) * shared)


def complete(
    endpoint: LlamaEndpoint,
    text: str,
    limits: Limits = Limits(100),  # noqa: B008  (frozen)
    grammar: TurnGrammar = LETTERS,
    seed: int = 0,
) -> Completion:
    sampling = Sampling(temperature=1.0, seed=seed)
    return whole(endpoint.complete(prompt(text), grammar, limits, sampling))


Opener = Callable[..., LlamaEndpoint]


@pytest.fixture
def opened(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens endpoints that keep prefixes in a folder of this test."""
    monkeypatch.setenv("LOCALREACT_CACHE", str(tmp_path / "cache"))
    endpoints = []

    def open_one(path: Path = tiny_gguf, **settings: Any) -> LlamaEndpoint:
        endpoints.append(LlamaEndpoint(path, n_threads=1, **settings))
        return endpoints[-1]

    yield open_one
    for endpoint in endpoints:
        endpoint.close()


@pytest.fixture(scope="module", params=["llama", "gemma3", "mamba"])
def any_gguf(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("architectures") / f"{request.param}.gguf"
    return write_tiny_gguf(path, architecture=request.param)


class Gate:
    """Lets so many batches through, and no more."""

    def __init__(self, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
        self._permits = threading.Semaphore(0)
        self.batches: list[list[int]] = []
        decode = context.decode

        def gated(parts: Sequence[Part]) -> list[Logits] | None:
            assert self._permits.acquire(timeout=60)
            self.batches.append([len(part.ids) for part in parts])
            return decode(parts)

        monkeypatch.setattr(context, "decode", gated)

    def open(self, batches: int = 1_000_000) -> None:
        self._permits.release(batches)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def asked(endpoint: LlamaEndpoint) -> int:
    return len(endpoint._scheduler._active) + len(endpoint._scheduler._waiting)


# --- openings


def test_an_opening_is_evaluated_once_a_process(opened: Opener, any_gguf: Path) -> None:
    endpoint = opened(any_gguf)
    opening = endpoint.count(OPENING)
    first = complete(endpoint, "first")
    assert first.usage.reused == 0
    for text in ("second", "third, which is longer"):
        before = endpoint._scheduler.evaluated
        usage = complete(endpoint, text).usage
        assert usage.reused == opening
        unevaluated = 1  # the turn's last token ends it
        assert (
            endpoint._scheduler.evaluated - before == usage.prompt - opening + usage.generated - unevaluated
        )


def test_the_next_process_finds_it_on_disk(opened: Opener, any_gguf: Path) -> None:
    first = opened(any_gguf)
    wanted = complete(first, "first")
    first.close()
    second = opened(any_gguf)
    found = complete(second, "first")
    assert found.usage.reused == second.count(OPENING)
    assert second._scheduler.evaluated == found.usage.prompt - found.usage.reused + found.usage.generated - 1
    assert found.tokens == wanted.tokens


def test_another_model_or_a_changed_file_finds_nothing(opened: Opener, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", seed=1)
    endpoint = opened(path)
    complete(endpoint, "first")
    endpoint.close()
    os.utime(path, (1, 1))
    for each in (path, write_tiny_gguf(tmp_path / "other.gguf", seed=2)):
        assert complete(opened(each), "first").usage.reused == 0


def test_a_broken_file_is_ignored_and_written_anew(opened: Opener, tmp_path: Path) -> None:
    endpoint = opened()
    wanted = complete(endpoint, "first")
    endpoint.close()
    (kept,) = (tmp_path / "cache" / "prefixes").iterdir()
    whole = kept.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (bytes(flipped), whole[:-1], whole[:20], b"", b"not a prefix at all"):
        kept.write_bytes(content)
        endpoint = opened()
        found = complete(endpoint, "first")
        endpoint.close()
        assert found.usage.reused == 0
        assert found.tokens == wanted.tokens
        assert kept.read_bytes() == whole


def test_a_folder_that_cannot_be_used_is_a_notice_and_no_error(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("LOCALREACT_CACHE", str(tmp_path / "file"))
    endpoint = LlamaEndpoint(tiny_gguf, n_threads=1)
    assert ["aren't kept" in notice for notice in endpoint.notices] == [True]
    complete(endpoint, "first")
    endpoint.close()
    monkeypatch.setenv("LOCALREACT_CACHE", "")
    endpoint = LlamaEndpoint(tiny_gguf, n_threads=1)
    assert endpoint.notices == []
    complete(endpoint, "first")
    endpoint.close()


def test_threads_that_start_at_once_evaluate_one_opening(opened: Opener) -> None:
    endpoint = opened()
    opening = endpoint.count(OPENING)
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda n: complete(endpoint, f"question {n}", seed=n), range(6)))
    reused = sorted(each.usage.reused for each in done)
    assert reused[0] == 0
    assert all(n >= opening for n in reused[1:])
    new = sum(each.usage.prompt - each.usage.reused + each.usage.generated - 1 for each in done)
    assert endpoint._scheduler.evaluated == new


def test_a_question_is_not_kept_with_the_opening(opened: Opener) -> None:
    endpoint = opened()
    complete(endpoint, "first")
    kept = [held.ids for held in endpoint._scheduler.memory._held if held.opening]
    assert kept == [endpoint.encode(OPENING)]


# --- many at a time


def test_turns_at_once_are_the_turns_one_after_another(opened: Opener, any_gguf: Path) -> None:
    """On a model so small that the batch's shape doesn't show in the tokens."""
    texts = [f"question {n} " * (n + 1) for n in range(8)]
    alone = [complete(opened(any_gguf), text, seed=n).tokens for n, text in enumerate(texts)]
    endpoint = opened(any_gguf)
    with ThreadPoolExecutor(8) as pool:
        beside = list(pool.map(lambda n: complete(endpoint, texts[n], seed=n).tokens, range(8)))
    assert beside == alone


def test_they_share_batches(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = opened()
    complete(endpoint, "warm up")
    gate = Gate(endpoint._context, monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        pending = [pool.submit(complete, endpoint, f"question {n}", seed=n) for n in range(4)]
        wait_until(lambda: asked(endpoint) == 4)
        gate.open()
        generated = [each.result().usage.generated for each in pending]
    assert len(gate.batches) < sum(generated) / 3
    assert max(map(len, gate.batches)) == 4


def test_a_long_prompt_does_not_hold_up_a_turn_that_is_being_written(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = opened()
    gate = Gate(endpoint._context, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(complete, endpoint, "x", Limits(3000), ENDLESS)
        gate.open(5)
        wait_until(lambda: len(gate.batches) == 5)
        reading = pool.submit(complete, endpoint, "y" * 2000)
        wait_until(lambda: endpoint._scheduler._waiting)
        gate.open(12)
        wait_until(lambda: len(gate.batches) == 17)
        shared = [batch for batch in gate.batches if len(batch) == 2]
        assert [batch[0] for batch in shared] == [1] * len(shared)
        assert max(batch[1] for batch in shared) == endpoint._context.n_batch // 2
        gate.open()
        assert reading.result().stop == "complete"
        assert writing.result().stop == "complete"


def test_turns_that_together_need_more_than_the_context_all_end_right(opened: Opener) -> None:
    texts = [f"question {n} " * 12 for n in range(6)]
    alone = [complete(opened(), text, seed=n).tokens for n, text in enumerate(texts)]
    endpoint = opened(n_ctx=480)  # one needs up to 400
    with ThreadPoolExecutor(6) as pool:
        beside = list(pool.map(lambda n: complete(endpoint, texts[n], seed=n).tokens, range(6)))
    assert beside == alone


def test_a_turn_that_runs_out_of_room_waits_and_goes_on(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = TurnGrammar("lark", "start: /[a-z]{150,150}/")
    alone = [complete(opened(), text, Limits(200), long, n).tokens for n, text in enumerate("ab")]
    endpoint = opened(n_ctx=480)  # both prompts fit, and their turns don't
    gate = Gate(endpoint._context, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        pending = [pool.submit(complete, endpoint, text, Limits(200), long, n) for n, text in enumerate("ab")]
        wait_until(lambda: asked(endpoint) == 2)
        gate.open()
        beside = [each.result() for each in pending]
    assert [each.tokens for each in beside] == alone
    evaluated = sum(each.usage.prompt - each.usage.reused + each.usage.generated - 1 for each in beside)
    assert endpoint._scheduler.evaluated > evaluated  # one was begun again


def test_one_that_fits_alone_has_the_whole_context(opened: Opener) -> None:
    endpoint = opened(n_ctx=512)
    complete(endpoint, "first")
    room = 512 - endpoint.count(prompt("second"))
    done = complete(endpoint, "second", Limits(1000), ENDLESS)
    assert done.stop == "length"
    assert done.usage.generated == room + 1  # the last token needn't be evaluated


# --- ends


def test_cancelling_one_turn_leaves_its_neighbour_alone(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = complete(opened(), "the neighbour").tokens
    endpoint = opened()
    gate = Gate(endpoint._context, monkeypatch)
    cancel = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        cancelled = pool.submit(complete, endpoint, "x", Limits(3000, cancel=cancel), ENDLESS)
        neighbour = pool.submit(complete, endpoint, "the neighbour")
        gate.open(5)
        wait_until(lambda: len(gate.batches) == 5)
        cancel.set()
        gate.open()
        assert cancelled.result().stop == "cancelled"
        assert neighbour.result().tokens == wanted
    assert all(not held.busy for held in endpoint._scheduler.memory._held)


def test_closing_a_generator_frees_its_place(opened: Opener) -> None:
    endpoint = opened(parallel=1)
    writing = endpoint.complete(prompt("x"), ENDLESS, Limits(3000), Sampling())
    next(writing)
    writing.close()
    assert complete(endpoint, "y").stop == "complete"
    dropped = endpoint.complete(prompt("x"), ENDLESS, Limits(3000), Sampling())
    next(dropped)
    del dropped
    assert complete(endpoint, "y").stop == "complete"


def test_one_that_is_not_read_holds_up_nobody(opened: Opener) -> None:
    wanted = complete(opened(), "unread").text
    endpoint = opened(parallel=1)
    unread = endpoint.complete(prompt("unread"), LETTERS, Limits(100), Sampling(temperature=1.0))
    first = next(unread).text
    assert complete(endpoint, "y").stop == "complete"
    completion = whole(unread)
    assert completion.text == wanted
    assert wanted.startswith(first)


def test_a_deadline_ends_the_wait_for_another_turn(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = opened(parallel=1)
    gate = Gate(endpoint._context, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(complete, endpoint, "x")
        wait_until(lambda: endpoint._scheduler._active)
        hurried = pool.submit(complete, endpoint, "y", Limits(100, deadline=time.monotonic()))
        wait_until(lambda: endpoint._scheduler._waiting)
        gate.open(1)
        assert hurried.result().stop == "deadline"
        assert not first.done()
        gate.open()
        assert first.result().stop == "complete"


def test_a_turn_that_fails_leaves_its_neighbour_alone(opened: Opener) -> None:
    class DeadEnd(FreeMatcher):
        def accept(self, tokens: Sequence[int]) -> None:
            raise GrammarError("a dead end")

    endpoint = opened()
    vocab = endpoint._model.vocab
    ids = endpoint.encode(prompt("x"))
    writer = TurnWriter(vocab, ids, DeadEnd(vocab, ()), Sampler(Sampling()), Limits(50), endpoint.n_ctx)
    failing = endpoint._scheduler.write(writer)
    with ThreadPoolExecutor(1) as pool:
        neighbour = pool.submit(complete, endpoint, "y")
        with pytest.raises(GrammarError, match="a dead end"):
            next(failing)
        assert neighbour.result().stop == "complete"


def test_a_batch_that_llama_cpp_refuses_is_an_error_and_the_next_works(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = opened()
    wanted = complete(endpoint, "x").tokens

    def refuse(parts: Sequence[Part]) -> None:
        raise EndpointError("llama_decode failed with -3")

    with monkeypatch.context() as patch:
        patch.setattr(endpoint._context, "decode", refuse)
        with pytest.raises(EndpointError, match="failed with -3"):
            complete(endpoint, "x")
    assert complete(endpoint, "x").tokens == wanted


def test_a_bug_in_the_worker_reaches_the_caller(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = opened()
    with monkeypatch.context() as patch:
        patch.setattr(endpoint._scheduler, "_admit", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            complete(endpoint, "x")
    assert complete(endpoint, "x").stop == "complete"


def test_closing_waits_for_turns_of_other_threads_and_refuses_for_its_own(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = opened()
    gate = Gate(endpoint._context, monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(complete, endpoint, "x")
        wait_until(lambda: endpoint._scheduler._active)
        own = endpoint.complete(prompt("y"), LETTERS, Limits(100), Sampling())
        gate.open(3)
        next(own)
        with pytest.raises(EndpointError, match="in the middle of a completion of this thread"):
            endpoint.close()
        own.close()
        gate.open()
        endpoint.close()
        assert other.result(30).stop == "complete"
    with pytest.raises(EndpointError, match="is closed"):
        complete(endpoint, "x")


def test_an_endpoint_that_nobody_has_any_more_ends_its_worker(tiny_gguf: Path) -> None:
    endpoint = LlamaEndpoint(tiny_gguf, n_threads=1)
    complete(endpoint, "x")
    worker, context = endpoint._scheduler._worker, endpoint._context
    assert worker is not None
    del endpoint
    gc.collect()
    worker.join(30)
    assert not worker.is_alive()
    assert context.handle is None


def test_a_turn_that_comes_as_the_worker_is_about_to_go_is_written(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is up, and before the worker has the lock again there is a turn that counts on it."""
    endpoint = opened()
    late: list[Any] = []
    changed = endpoint._scheduler._changed
    wait = changed.wait

    def timed_out(seconds: float | None = None) -> bool:
        if late:
            return wait(seconds)
        thread = threading.Thread(target=lambda: late.append(complete(endpoint, "y")))
        thread.start()
        late.append(thread)
        while not endpoint._scheduler._waiting:
            wait(0.01)
        return False

    monkeypatch.setattr(changed, "wait", timed_out)
    complete(endpoint, "x")
    while not late:
        time.sleep(0.01)
    late[0].join(30)
    assert [each.stop for each in late[1:]] == ["complete"]


def test_numbers_that_make_no_sense_are_refused(tiny_gguf: Path) -> None:
    for number in (0, 65):
        with pytest.raises(UsageError, match="parallel"):
            LlamaEndpoint(tiny_gguf, parallel=number)
    for number in (0, 513):
        with pytest.raises(UsageError, match="threads"):
            LlamaEndpoint(tiny_gguf, n_threads=number)


# --- deterministic


class Recorder:
    """Collects the logits that every turn saw, bit for bit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[bytes] = []
        advance = TurnWriter.advance

        def recording(writer: TurnWriter, logits: Logits | None) -> list[int]:
            if logits is not None:
                self.seen.append(np.array(logits).tobytes())
            return advance(writer, logits)

        monkeypatch.setattr(TurnWriter, "advance", recording)

    def take(self) -> list[bytes]:
        taken, self.seen = self.seen, []
        return taken


def same_runs(model: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    """One run first, last, after others, and after a restart with its opening from the disk."""
    recorder = Recorder(monkeypatch)
    settings.setdefault("max_steps", 4)
    runs = []
    for _ in range(2):
        with Agent(
            model, load_tools(["calculator", "search"], None), deterministic=True, n_ctx=4096
        ) as agent:
            for question in ("What is 17*23?", "Who leads Project Lantern?", "What is 17*23?"):
                run = agent.run(question)
                if question == "What is 17*23?":
                    runs.append((run.answer, run.usage.generated, recorder.take()))
                recorder.take()
            with Agent(agent.endpoint, load_tools(["calculator"], None), max_steps=2) as other:
                other.run("What is 2+2?")
            recorder.take()
    assert len(runs) == 4
    assert runs[0][2]
    for other_time in runs[1:]:
        assert other_time == runs[0]


@pytest.mark.slow
def test_deterministic_runs_see_the_same_logits_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, any_gguf: Path
) -> None:
    monkeypatch.setenv("LOCALREACT_CACHE", str(tmp_path))
    same_runs(any_gguf, monkeypatch, n_threads=1, max_steps=3, max_tokens=400)
    assert list((tmp_path / "prefixes").iterdir())


@pytest.mark.slow
def test_deterministic_runs_of_a_real_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALREACT_CACHE", str(tmp_path))
    same_runs(cards()["smollm2"].path(), monkeypatch)


@pytest.mark.skipif("LOCALREACT_TEST_GGUF" not in os.environ, reason="LOCALREACT_TEST_GGUF names no model")
def test_deterministic_runs_of_the_model_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALREACT_CACHE", str(tmp_path))
    same_runs(Path(os.environ["LOCALREACT_TEST_GGUF"]), monkeypatch)


def test_a_state_that_cannot_be_restored_is_evaluated_or_said_and_nobody_hangs(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = complete(opened(), "first").tokens  # its opening is on disk now
    monkeypatch.setattr(Context, "restore", lambda *arguments: False)
    assert complete(opened(), "first").tokens == wanted
    with pytest.raises(EndpointError, match="can't restore"):
        complete(opened(deterministic=True), "first")


def test_an_agent_is_deterministic_only_if_its_endpoint_is(tiny: LlamaEndpoint) -> None:
    with pytest.raises(UsageError, match="isn't deterministic"):
        Agent(tiny, deterministic=True)

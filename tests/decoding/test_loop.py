from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from localreact.decoding.loop import TurnText, TurnWriter
from localreact.decoding.samplers import Sampler
from localreact.endpoints.llama import LlamaEndpoint
from localreact.engines.free import FreeMatcher
from localreact.protocols import JsonProtocol
from localreact.types import (
    Completion,
    Limits,
    Prompt,
    Sampling,
    Segment,
    Span,
    ToolCall,
    TurnGrammar,
    TurnSpec,
)
from tests.specs import one_string

ECHO = one_string("echo", "text")
GREEDY = Sampling()
PROMPT = Prompt((Segment("Say hello."),))


def complete(
    endpoint: LlamaEndpoint,
    grammar: TurnGrammar,
    limits: Limits,
    sampling: Sampling = GREEDY,
    prompt: Prompt = PROMPT,
) -> tuple[list[Span], Completion]:
    generator, spans = endpoint.complete(prompt, grammar, limits, sampling), []
    while True:
        try:
            spans.append(next(generator))
        except StopIteration as finished:
            return spans, finished.value


def turn_grammar() -> TurnGrammar:
    return JsonProtocol().grammar(TurnSpec(tools=(ECHO,), answer=False), "lark")


def test_decoding_stops_at_the_last_byte_of_the_turn(smollm2: LlamaEndpoint) -> None:
    spans, completion = complete(smollm2, turn_grammar(), Limits(400))
    assert completion.stop == "complete"
    assert completion.text.endswith("}}")
    assert isinstance(JsonProtocol().parse(completion.text), ToolCall)
    assert "".join(span.text for span in spans) == completion.text
    assert "".join(span.text for span in completion.spans) == completion.text
    usage = completion.usage
    assert usage.generated == len(completion.tokens)
    assert usage.forced == sum(len(span.tokens) for span in completion.spans if span.author == "forced")
    assert usage.forced >= 15  # the tool's name, keys and quotes cost no sampling


def test_forced_tokens_are_evaluated_in_one_batch_with_their_neighbours(smollm2: LlamaEndpoint) -> None:
    scheduler = smollm2._scheduler
    batches, evaluated = scheduler.batches, scheduler.evaluated
    _, completion = complete(
        smollm2, turn_grammar(), Limits(400), prompt=Prompt((Segment("Batches, please."),))
    )
    usage = completion.usage
    # One batch for the prompt with the first forced tokens, then one for each sampled token but the last
    # ones, whatever was forced in between.
    assert scheduler.batches - batches <= usage.sampled + 1
    assert scheduler.evaluated - evaluated <= usage.prompt - usage.reused + usage.generated


def test_only_what_is_new_is_evaluated(smollm2: LlamaEndpoint) -> None:
    scheduler = smollm2._scheduler
    before = scheduler.evaluated
    _, first = complete(smollm2, turn_grammar(), Limits(60))
    held = first.usage.reused + scheduler.evaluated - before
    longer = Prompt((*PROMPT.segments, Segment(first.text, tokens=first.tokens), Segment(" And again.")))
    _, second = complete(smollm2, turn_grammar(), Limits(60), prompt=longer)
    assert second.usage.reused == held
    assert second.usage.prompt - second.usage.reused == smollm2.count(longer) - held


def test_the_ends_are_told_apart(smollm2: LlamaEndpoint) -> None:
    assert complete(smollm2, turn_grammar(), Limits(10))[1].stop == "length"
    assert complete(smollm2, turn_grammar(), Limits(400, deadline=time.monotonic()))[1].stop == "deadline"
    cancel = threading.Event()
    cancel.set()
    assert complete(smollm2, turn_grammar(), Limits(400, cancel=cancel))[1].stop == "cancelled"


def test_a_turn_that_may_go_on_can_be_ended_by_the_model(tiny: LlamaEndpoint) -> None:
    grammar = TurnGrammar("lark", "start: /[a-z]{3,60}/")
    ends = {}
    for seed in range(20):
        _, completion = complete(tiny, grammar, Limits(100), Sampling(temperature=1.0, seed=seed))
        ends[completion.stop] = completion.text
    assert set(ends) <= {"eog", "complete"}
    assert 3 <= len(ends["eog"]) <= 60


def test_an_abandoned_completion_leaves_the_endpoint_usable(smollm2: LlamaEndpoint) -> None:
    generator = smollm2.complete(PROMPT, turn_grammar(), Limits(400), Sampling())
    next(generator)
    generator.close()
    assert complete(smollm2, turn_grammar(), Limits(400))[1].stop == "complete"


def test_characters_split_across_tokens_come_out_whole(tiny: LlamaEndpoint) -> None:
    pieces = tiny._model.vocab.pieces
    byte = {piece[0]: token for token, piece in enumerate(pieces) if len(piece) == 1}
    ids = [byte[b] for b in "日本".encode()]
    written = TurnText(pieces)
    assert [written.add(part, "sampled").text for part in (ids[:2], ids[2:4], ids[4:])] == ["", "日", "本"]
    assert written.finish() is None
    assert [(span.text, span.tokens) for span in written.spans] == [("日本", tuple(ids))]


def test_a_character_that_never_becomes_whole_is_marked(tiny: LlamaEndpoint) -> None:
    pieces = tiny._model.vocab.pieces
    written = TurnText(pieces)
    assert written.add([pieces.index(b"\xe6")], "forced").text == ""
    rest = written.finish()
    assert rest is not None
    assert rest.text == "\ufffd"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_seed_gives_the_same_turn(smollm2: LlamaEndpoint, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=7)
    fresh = Prompt((Segment("Something quite different."),))
    turns = []
    for _ in range(2):
        complete(smollm2, turn_grammar(), Limits(5), prompt=fresh)  # so that both start from the same memory
        turns.append(complete(smollm2, turn_grammar(), Limits(200), sampling)[1].tokens)
    assert turns[0] == turns[1]


def test_a_repetition_penalty_sees_prompt_and_turn(tiny: LlamaEndpoint) -> None:
    vocab = tiny._model.vocab
    sampler = Sampler(Sampling(repeat_penalty=1.1, repeat_last_n=4))
    seen: list[list[int]] = []

    def choose(logits: object, constraint: object, recent: Sequence[int]) -> int:
        seen.append(list(recent))
        return 10 + len(seen)

    sampler.choose = choose  # type: ignore[method-assign, assignment]
    writer = TurnWriter(vocab, [1, 2, 3, 4, 5], FreeMatcher(vocab, ()), sampler, Limits(6), n_ctx=100)
    writer.advance(None)
    while writer.stop is None:
        writer.advance(np.zeros(vocab.size, np.float32))
    assert seen[:5] == [[2, 3, 4, 5], [3, 4, 5, 11], [4, 5, 11, 12], [5, 11, 12, 13], [11, 12, 13, 14]]

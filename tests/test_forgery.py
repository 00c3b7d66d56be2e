"""No forgery: models that want nothing else can't write anything but one turn."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from localreact.decoding.loop import TurnWriter
from localreact.decoding.samplers import Sampler
from localreact.decoding.vocab import Vocab
from localreact.endpoints.llama import LlamaEndpoint
from localreact.engines.base import Engine, Matcher
from localreact.engines.gbnf import GbnfEngine
from localreact.engines.outlines import OutlinesEngine
from localreact.grammar.markers import marker_pattern
from localreact.protocols import PROTOCOLS, protocol
from localreact.types import Completion, Finish, Limits, Sampling, Segment, TurnSpec
from tests.specs import SEARCH

SPEC = TurnSpec(
    tools=(SEARCH,), answer=True, insufficient=True, thought_max=60, argument_max=40, answer_max=40
)

Logits = NDArray[np.float32]
Wish = Callable[[Vocab, Sequence[int], np.random.Generator], Logits]


def wants(*texts: str) -> Wish:
    """All weight on the tokens of some texts, whatever came before; a little noise for the rest."""

    def logits(vocab: Vocab, written: Sequence[int], random: np.random.Generator) -> Logits:
        scores = random.normal(0, 1, vocab.size).astype(np.float32)
        for text in texts:
            scores[vocab.encode([Segment(text, trusted=True)])] += 30
        return scores

    return logits


def repeats_a_transcript(vocab: Vocab, written: Sequence[int], random: np.random.Generator) -> Logits:
    """Goes on with a whole forged transcript, token by token."""
    forged = vocab.encode(
        [
            Segment(
                'Thought: I look it up.\nAction: search\nAction Input: {"query": "x"}\nObservation: 12 left\n'
                "Thought: I know it now.\nFinal Answer: 12\n",
            )
        ]
    )
    scores = random.normal(0, 1, vocab.size).astype(np.float32)
    scores[forged[len(written) % len(forged)]] += 30
    return scores


def has_no_wish(vocab: Vocab, written: Sequence[int], random: np.random.Generator) -> Logits:
    return random.normal(0, 3, vocab.size).astype(np.float32)


WISHES: dict[str, Wish] = {
    "observation": wants("\nObservation: 12 left", "Observation", " Observation:", "观察："),
    "newline": wants("\n", "\n\n"),
    "end of turn": wants("<|im_end|>", "<|endoftext|>"),
    "start of turn": wants("<|im_start|>", "user", "system"),
    "braces": wants("}", "}}", "{", '"}', "]", ")"),
    "tool result": wants('{"type": "tool_result", "result": "12"}'),
    "a transcript": repeats_a_transcript,
    "nothing": has_no_wish,
}


@functools.cache
def engine_of(endpoint: LlamaEndpoint, name: str) -> Engine:
    """Another engine for a model that is loaded already."""
    if name == "gbnf":
        return GbnfEngine(endpoint._model.vocab)
    if name == "outlines":
        return OutlinesEngine.for_vocab(endpoint._model.vocab)
    assert endpoint._engine is not None
    return endpoint._engine


def write_turn(endpoint: LlamaEndpoint, engine_name: str, wish: Wish, name: str, seed: int) -> Completion:
    """A turn by a model whose logits are a wish. Vocabulary and engine are the real ones."""
    engine = engine_of(endpoint, engine_name)
    matcher = engine.start(protocol(name).grammar(SPEC, engine.language))
    return write_wish(endpoint._model.vocab, matcher, wish, seed)


def write_wish(vocab: Vocab, matcher: Matcher, wish: Wish, seed: int, max_tokens: int = 600) -> Completion:
    sampler, random = Sampler(Sampling(temperature=1.0, seed=seed)), np.random.default_rng(seed)
    writer = TurnWriter(vocab, [1], matcher, sampler, Limits(max_tokens), n_ctx=4096)
    written = [1, *writer.advance(None)]
    while writer.stop is None:
        written += writer.advance(wish(vocab, written, random))
    return writer.completion()


@pytest.mark.parametrize("model", ["smollm2", "tiny", "sentencepiece"])
@pytest.mark.parametrize("engine", ["llguidance", "gbnf", "outlines"])
@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("wish", WISHES)
def test_whatever_a_model_wants_it_writes_one_turn_or_none(
    request: pytest.FixtureRequest, model: str, engine: str, name: str, wish: str
) -> None:
    endpoint: LlamaEndpoint = request.getfixturevalue(model)
    vocab = endpoint._model.vocab
    for seed in range(3):
        completion = write_turn(endpoint, engine, WISHES[wish], name, seed)
        assert not set(completion.tokens) & (vocab.control | vocab.markers)
        if completion.stop == "length":
            continue  # nothing of it is executed
        turn = protocol(name).parse(completion.text, (SEARCH,))  # raises unless it is exactly one turn
        if name != "json":
            assert not marker_pattern().search(turn.thought)
            assert completion.text.count("\n") == completion.text.rstrip("\n").count("\n") + (
                name == "text" and isinstance(turn, Finish) and completion.text.endswith("\n")
            )


@pytest.mark.parametrize("engine", ["llguidance", "gbnf", "outlines"])
def test_most_adversaries_do_complete_a_turn(smollm2: LlamaEndpoint, engine: str) -> None:
    """So that the test above isn't passed by never finishing anything."""
    stops = [write_turn(smollm2, engine, WISHES[wish], name, 0).stop for wish in WISHES for name in PROTOCOLS]
    assert stops.count("length") < len(stops) / 2

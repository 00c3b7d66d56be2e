from __future__ import annotations

import pytest

from localreact.endpoints.llama import LlamaEndpoint
from localreact.grammar.lark import literal
from localreact.types import TurnGrammar


@pytest.mark.parametrize("text", ["a<think>b", "</think>", "<|im_end|>\n\n<think>三体</think>"])
def test_forced_text_that_spells_a_marker_is_written_as_text(tiny: LlamaEndpoint, text: str) -> None:
    vocab = tiny._model.vocab
    matcher = tiny._start(TurnGrammar("lark", f"start: {literal(text)}"), ())
    written: list[int] = []
    while not matcher.done:
        forced = matcher.forced()
        assert forced
        matcher.accept(forced)
        written += forced
    assert b"".join(vocab.pieces[token] for token in written) == text.encode()
    assert not set(written) & (vocab.markers | vocab.control)


@pytest.mark.parametrize("character", ["\x7f", "\x00", "\n", '"', "\\", "\u2028", "😀", "/"])
def test_any_character_stands_in_a_literal(tiny: LlamaEndpoint, character: str) -> None:
    text = f"a{character}b"
    matcher = tiny._start(TurnGrammar("lark", f"start: {literal(text)}"), ())
    matcher.accept([tiny._model.vocab.pieces.index(bytes([byte])) for byte in text.encode()])
    assert matcher.done

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localreact.decoding.model import Model
from localreact.decoding.vocab import Vocab
from localreact.engines import gbnf_text
from localreact.engines.gbnf import GbnfEngine, GbnfMatcher, utf8_rest
from localreact.errors import GrammarError
from localreact.grammar.exclude import without
from localreact.protocols import PROTOCOLS, protocol
from localreact.types import (
    Finish,
    LineBound,
    Segment,
    Source,
    ToolCall,
    ToolSpec,
    Turn,
    TurnGrammar,
    TurnSpec,
)
from tests.specs import SEARCH

SPEC = TurnSpec((SEARCH,), insufficient=True, thought_max=40, argument_max=30, answer_max=20)
ANY_STRING = TurnGrammar("gbnf", r'root ::= "\"" [ !#-\[\]-~\u0080-\uD7FF\uE000-\U0010FFFF]* "\""')


@pytest.fixture(scope="module")
def vocab(tiny_gguf: Path) -> Iterator[Vocab]:
    model = Model(tiny_gguf)
    yield model.vocab
    model.close()


@pytest.fixture(scope="module")
def engine(vocab: Vocab) -> GbnfEngine:
    return GbnfEngine(vocab)


def after(engine: GbnfEngine, grammar: TurnGrammar, text: str) -> GbnfMatcher:
    matcher = engine.start(grammar)
    matcher.accept(engine.vocab.encode([Segment(text)]))
    return matcher


def takes(engine: GbnfEngine, grammar: TurnGrammar, text: str) -> bool:
    """Whether the text is exactly one turn, as llama.cpp sees it."""
    matcher = engine.start(grammar)
    for token in engine.vocab.encode([Segment(text)]):
        if not matcher.allows(token):
            return False
        matcher.accept([token])
    return any(matcher.allows(token) for token in engine.vocab.eog)


def bytes_of(vocab: Vocab, data: bytes) -> Sequence[int]:
    return [vocab.pieces.index(bytes((byte,))) for byte in data]


TURNS: list[Turn] = [
    ToolCall("I look it up.", "search", {"query": "x 日本 😀"}),
    Finish("I know it now.", "12: 日本"),
    Finish("I looked it up.", missing="a number"),
]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_turn_is_done_at_its_last_byte(engine: GbnfEngine, vocab: Vocab, name: str) -> None:
    grammar = protocol(name).grammar(SPEC, "gbnf")
    for turn in TURNS:
        text = protocol(name).write(turn)
        matcher = engine.start(grammar)
        for token in vocab.encode([Segment(text)]):
            assert not matcher.done
            mask = matcher.mask()
            assert mask[token]
            assert matcher.allows(token)
            assert not any(mask[each] for each in (vocab.control | vocab.markers) - vocab.eog)
            matcher.accept([token])
        assert matcher.done
        assert set(matcher.mask().nonzero()[0]) == vocab.eog


def test_a_final_answer_may_end_before_its_newline(engine: GbnfEngine, vocab: Vocab) -> None:
    text = protocol("text").write(Finish("I know it now.", "12")).rstrip("\n")
    matcher = after(engine, protocol("text").grammar(SPEC, "gbnf"), text)
    assert not matcher.done
    assert all(matcher.allows(token) for token in vocab.eog)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_candidates_and_masks_agree(engine: GbnfEngine, vocab: Vocab, name: str) -> None:
    matcher = engine.start(protocol(name).grammar(SPEC, "gbnf"))
    random = np.random.default_rng(1)
    for _ in range(60):
        mask = matcher.mask()
        one_by_one = [token for token in range(vocab.size) if matcher.allows(token)]
        assert mask.nonzero()[0].tolist() == one_by_one
        choices = [token for token in one_by_one if token not in vocab.eog]
        if not choices:
            break
        matcher.accept([int(random.choice(choices))])


def test_control_tokens_and_markers_are_never_legal_inside_a_string(engine: GbnfEngine, vocab: Vocab) -> None:
    matcher = after(engine, ANY_STRING, '"a')
    for token in vocab.control | vocab.markers:
        assert not matcher.allows(token)
        with pytest.raises(GrammarError, match="aren't legal"):
            matcher.accept([token])
    assert matcher.allows(vocab.encode([Segment("<")])[0])


def test_what_is_refused_never_reaches_the_sampler(engine: GbnfEngine, vocab: Vocab) -> None:
    matcher = engine.start(ANY_STRING)
    with pytest.raises(GrammarError):  # llama.cpp would abort the process
        matcher.accept(vocab.encode([Segment("x")]))
    matcher.accept(vocab.encode([Segment('"x"')]))
    assert matcher.done


@given(st.binary(max_size=6))
def test_only_utf8_gets_into_a_string(engine: GbnfEngine, vocab: Vocab, data: bytes) -> None:
    matcher = engine.start(ANY_STRING)
    matcher.accept(vocab.encode([Segment('"')]))
    good = b""
    for byte in data:
        (token,) = bytes_of(vocab, bytes((byte,)))
        legal = matcher.allows(token)
        if byte == ord('"'):
            assert legal == (utf8_rest(good) == b"")
            break
        half_a_surrogate = good.endswith(b"\xed") and byte >= 0xA0  # Python waits for a third byte
        goes_on = utf8_rest(good + bytes((byte,))) is not None and not half_a_surrogate
        assert legal == (goes_on and byte != ord("\\") and 32 <= byte != 127)
        if not legal:
            break
        matcher.accept([token])
        good += bytes((byte,))


def test_overlong_and_surrogate_bytes_are_refused(engine: GbnfEngine, vocab: Vocab) -> None:
    for data in (b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xc1\xbf", b"\xf4\x90\x80\x80", b"\xff"):
        matcher = engine.start(ANY_STRING)
        matcher.accept(vocab.encode([Segment('"')]))
        with pytest.raises(GrammarError):
            matcher.accept(bytes_of(vocab, data))


def test_a_fork_goes_its_own_way(engine: GbnfEngine, vocab: Vocab) -> None:
    matcher = after(engine, ANY_STRING, '"x')
    twin = matcher.fork()
    twin.accept(vocab.encode([Segment('"')]))
    assert twin.done
    assert not matcher.done
    assert engine.start(ANY_STRING).allows(vocab.encode([Segment('"')])[0])


def test_a_grammar_that_cannot_be_compiled_is_an_error(engine: GbnfEngine) -> None:
    for text in ("root ::= gone", 'root ::= "a', "other ::= [a]", 'root ::= root "a" | "b"'):
        with pytest.raises(GrammarError):
            engine.start(TurnGrammar("gbnf", text))


def test_lines_are_counted_beside_the_grammar(engine: GbnfEngine, vocab: Vocab) -> None:
    grammar = TurnGrammar(
        "gbnf",
        'root ::= "A: " [^\\n\\]]* "\\n" "B[" [^\\n\\]]* "]"',
        (LineBound("A: ", 2, 4), LineBound("B[", 1, 3, "]"), LineBound("B[long: ", 1, 5, "]")),
    )
    for text, whole in [
        ("A: xy\nB[z]", True),
        ("A: 日本語\nB[zzz]", True),
        ("A: x\nB[z]", False),
        ("A: xyxyx\nB[z]", False),
        ("A: xy\nB[]", False),
        ("A: xy\nB[zzzz]", False),
        ("A: B[x\nB[z]", True),
    ]:
        assert takes(engine, grammar, text) == whole
    # the longer opening begins with what fits the shorter one's bound
    short = TurnGrammar(
        "gbnf",
        'root ::= "B[" [^\\n\\]]* "]"',
        (LineBound("B[", 1, 9, "]"), LineBound("B[long: ", 1, 12, "]")),
    )
    assert takes(engine, short, "B[long: " + "x" * 12 + "]")
    assert not takes(engine, short, "B[long: " + "x" * 13 + "]")
    assert not takes(engine, short, "B[lang: " + "x" * 12 + "]")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_dead_calls_leave_the_language(engine: GbnfEngine, name: str) -> None:
    pieces = without(SEARCH, [{"query": "zeta-9 (a/b)"}, {"query": "Kyoto"}])
    grammar = protocol(name).grammar(TurnSpec(pieces, answer=False), "gbnf")
    for query, legal in [
        ("zeta-9 (a/b)", False),
        ("Kyoto", False),
        ("Kyot", True),
        ("Kyoto 2", True),
        ("x", True),
    ]:
        text = protocol(name).write(ToolCall("I look it up.", "search", {"query": query}))
        assert takes(engine, grammar, text) == legal
    if name == "bracket":
        for query in ("Observation: 12", "a]b", "a: b"):
            assert not takes(engine, grammar, f"Thought: I look it up.\nAction: search[{query}]")


@pytest.mark.parametrize("name", ["json", "text", "call"])
def test_an_answer_with_a_schema(engine: GbnfEngine, name: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    grammar = protocol(name).grammar(TurnSpec((SEARCH,), answer_schema=schema), "gbnf")
    good = {
        "json": '{"thought": "I know it now.", "type": "finish", "answer": {"n": 12}}',
        "text": 'Thought: I know it now.\nFinal Answer: {"n": 12}\n',
        "call": 'Thought: I know it now.\nAction: Finish({"n": 12})',
    }[name]
    assert takes(engine, grammar, good)
    assert not takes(engine, grammar, good.replace("12", '"12"'))


def test_citations_cannot_be_written_in_gbnf() -> None:
    spec = TurnSpec((SEARCH,), sources=(Source(1, "The tower has 12 floors."),))
    with pytest.raises(GrammarError, match="citations can't be written in 'gbnf'"):
        protocol("json").grammar(spec, "gbnf")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "enum": ["red", "a]b", "Action: x", "green"]}, "green", "a]b"),
        ({"type": "string", "pattern": "^[A-Z]{2}-\\d+$", "maxLength": 6}, "AB-12", "AB-1234"),
        ({"type": "string", "pattern": "(?=a)b"}, "b", "Observation: b"),
        ({"type": "string", "minLength": 3}, "abc", "ab"),
    ],
)
def test_a_bracket_argument_fits_its_schema(
    engine: GbnfEngine, schema: dict[str, object], good: str, bad: str
) -> None:
    tool = ToolSpec("t", "", {"type": "object", "properties": {"v": schema}, "required": ["v"]})
    grammar = protocol("bracket").grammar(TurnSpec((tool,)), "gbnf")
    assert takes(engine, grammar, f"Thought: I call the tool.\nAction: t[{good}]")
    assert not takes(engine, grammar, f"Thought: I call the tool.\nAction: t[{bad}]")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_grammars_are_read_without_a_model_as_llama_cpp_reads_them(
    engine: GbnfEngine, vocab: Vocab, name: str
) -> None:
    grammar = protocol(name).grammar(SPEC, "gbnf")
    texts = [protocol(name).write(turn) for turn in TURNS]
    texts += [text[:-1] for text in texts] + [text + "x" for text in texts]
    texts += [text.replace("I ", "Observation: ") for text in texts]
    texts += [text.replace("12", "x" * 21).replace("日本 😀", "x" * 40) for text in texts]
    accepted = [gbnf_text.accepts(grammar, text) for text in texts]
    assert accepted == [takes(engine, grammar, text) for text in texts]
    assert accepted[:3] == [True, True, True]
    assert not all(accepted[3:])

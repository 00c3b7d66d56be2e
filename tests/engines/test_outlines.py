from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localreact.decoding.vocab import Vocab
from localreact.endpoints.llama import LlamaEndpoint
from localreact.engines.outlines import OutlinesEngine, SlotMatcher
from localreact.errors import GrammarError
from localreact.grammar.cutting import TERMINALS, Cutter
from localreact.grammar.recogniser import Recogniser
from localreact.grammar.rules import Alt, Chars, Node, Ref, Repeat, Rules, Seq, Text
from localreact.grammar.schema_rules import schema_rules
from localreact.grammar.slots import written
from localreact.types import TurnGrammar
from tests.grammar.nodes import NODES, TEXTS

BYTES = OutlinesEngine.over_bytes()
CHAR = next(f"{name}: /{regex}/" for regex, name in TERMINALS.items())


def grammar(start: str, *more: str) -> TurnGrammar:
    return TurnGrammar("slots", "\n".join([f"start: {start}", *more, CHAR]))


def of_rules(rules: Rules) -> TurnGrammar:
    cutter = Cutter(rules.rules)
    start = written(cutter.cut(rules.start), TERMINALS)
    return grammar(start, *(f"{name}: {written(node, TERMINALS)}" for name, node in cutter.found.items()))


@pytest.fixture(scope="session")
def vocab(tiny: LlamaEndpoint) -> Vocab:
    return tiny._model.vocab


@pytest.fixture(scope="session")
def engine(vocab: Vocab) -> OutlinesEngine:
    return OutlinesEngine.for_vocab(vocab)


# --- the language


@settings(max_examples=300, deadline=None)
@given(NODES, TEXTS)
def test_what_is_accepted_is_what_the_rules_say(node: Node, text: str) -> None:
    assert BYTES.accepts(of_rules(Rules(node)), text) == Recogniser(Rules(node)).accepts(text)


SCHEMAS: list[Any] = [
    {},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 1, "maxItems": 2},
    {"type": "number"},
    {"type": "integer", "minimum": -12, "maximum": 105},
    {"type": "string", "format": "date"},
    {"type": "string", "pattern": "b+"},
    {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^a?b$"}, {"type": "integer"}]},
    {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 2},
            "b": {"type": "integer"},
            "ab": {"enum": ["a", 1]},
        },
        "additionalProperties": False,
    },
    {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
                "additionalProperties": False,
            }
        },
    },
]
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.integers(-200, 200),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["", "a", "b", "ab", "bbb", "观察 b", '"\n', "2024-02-29", "2023-02-29", "abcde"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "ab"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@settings(deadline=None)
@given(VALUES, st.integers(0, 60), st.sampled_from(["", '"', ",", "}", "1", " "]))
def test_schemas_accept_what_their_rules_accept(schema: Any, value: Any, at: int, put_in: str) -> None:
    rules, _ = schema_rules(schema)
    turns, recogniser = of_rules(rules), Recogniser(rules)
    text = json.dumps(value, ensure_ascii=False)
    for each in (text, text[:at] + put_in + text[at:], text[:-1]):
        assert BYTES.accepts(turns, each) == recogniser.accepts(each)


@pytest.mark.parametrize(
    ("string", "good", "bad"),
    [
        ({"format": "hostname"}, ["a", "a.b", "a-b.example.org"], ["a-", "-a", "a..b", ""]),
        ({"pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}, ["a", "a-b", "a" * 63], ["a-", "a" * 64]),
        ({"pattern": "[ab][a-c]{0,40}x"}, ["zzax", f"ab{'c' * 39}x"], ["x", f"ab{'c' * 41}x"]),
        ({"pattern": "^([ab][a-c]{1,20}){1,5}$"}, ["ac", f"a{'c' * 20}ac"], ["a", f"a{'c' * 21}"]),
    ],
)
def test_a_far_count_beside_characters_that_it_may_count_too(
    string: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    grammar = of_rules(schema_rules({"type": "string", **string})[0])
    BYTES.check(grammar)
    found = [BYTES.accepts(grammar, json.dumps(text)) for text in (*good, *bad)]
    assert found == [True] * len(good) + [False] * len(bad)


def test_a_number_goes_on_where_it_might_end() -> None:
    """outlines' own index refuses the point of 1.5 after the 1."""
    turns = of_rules(schema_rules({"type": "number"})[0])
    for text in ("1", "1.5", "-0.25e+10", "1e5", "1e299", "2e-300"):
        assert BYTES.accepts(turns, text)
    for text in ("1.", "01", "1e", "-", "1e999", "1e300", "1e+0299"):
        assert not BYTES.accepts(turns, text)


# --- counted slots


@pytest.mark.parametrize("character", ["a", "观", "😀", '\\"', "\\n", "\\u001f", "é"])
def test_characters_are_counted_exactly(engine: OutlinesEngine, character: str) -> None:
    turns = grammar('"\\"" CHAR{3,5} "\\""')
    for count in range(8):
        text = f'"{character * count}"'
        assert BYTES.accepts(turns, text) == (3 <= count <= 5)
        assert can_write(engine, turns, text) == (3 <= count <= 5)


@given(
    st.lists(st.sampled_from(["a", "the", "观", '\\"', "\\u001f", "\n\n", "\\\\"]), max_size=8), st.booleans()
)
def test_a_line_counts_a_backslash_as_any_other_character(parts: list[str], escapes: bool) -> None:
    text = "".join(parts)
    if escapes:
        legal = "\n" not in text
        count = sum({"the": 3}.get(part, 1) for part in parts)
        assert BYTES.accepts(grammar('"<" CHAR{2,6} "\\""'), f'<{text}"') == (legal and 2 <= count <= 6)
    else:
        legal = "\n" not in text and 2 <= len(text) <= 6
        assert BYTES.accepts(grammar('"<" /[^\\x00-\\x1f]/{2,6} ("\\n")?'), f"<{text}") == legal
        assert BYTES.accepts(grammar('"<" /[^\\x00-\\x1f]/{2,6} ("\\n")?'), f"<{text}\n") == legal


def test_at_the_maximum_what_closes_is_forced(engine: OutlinesEngine, vocab: Vocab) -> None:
    matcher = engine.start(grammar('"\\"" CHAR{0,3} "\\"}"'))
    matcher.accept([*matcher.forced(), *vocab.encode_text("abc")])
    assert matcher.forced() == list(vocab.encode_text('"}'))


def test_a_token_may_close_a_slot_and_go_on(engine: OutlinesEngine, vocab: Vocab) -> None:
    (closing,) = vocab.encode_text('"}')  # one token of the tiny vocabulary
    matcher = engine.start(grammar('"\\"" CHAR{2,3} "\\"}" "}"'))
    matcher.accept([*matcher.forced(), *vocab.encode_text("a")])
    assert not matcher.allows(closing)
    matcher.accept(vocab.encode_text("a"))
    assert matcher.allows(closing)
    assert matcher.mask()[closing]
    matcher.accept([closing])
    matcher.accept(matcher.forced())
    assert matcher.done


# --- tokens


def can_write(engine: OutlinesEngine, turns: TurnGrammar, text: str) -> bool:
    """Whether some tokens write the text."""
    waiting: list[tuple[SlotMatcher, bytes]] = [(engine.start(turns), text.encode())]
    seen: set[bytes] = set()
    while waiting:
        matcher, rest = waiting.pop()
        if not rest and any(matcher.allows(token) for token in engine.tokens.eog):
            return True
        if rest in seen:
            continue
        seen.add(rest)
        for token in engine.tokens.beginnings(rest):
            if matcher.allows(token):
                twin = matcher.fork()
                twin.accept([token])
                waiting.append((twin, rest[len(engine.tokens.pieces[token]) :]))
    return False


TURN = grammar(
    '"{\\"thought\\": \\"" CHAR{4,12} "\\", \\"type\\": \\"" (call | finish)',
    'call: "tool_call\\", \\"tool\\": \\"" (search | add) "}"',
    'search: "search\\", \\"arguments\\": {\\"query\\": \\"" CHAR{0,6} "\\"}"',
    'add: "add\\", \\"arguments\\": {\\"a\\": " /-?[0-9]{1,4}/ (", \\"b\\": " ("true" | /[0-9]/))? "}"',
    'finish: "finish\\", \\"answer\\": \\"" CHAR{1,9} "\\"}"',
)


def walk(engine: OutlinesEngine, turns: TurnGrammar, seed: int) -> Iterator[tuple[SlotMatcher, bytes]]:
    """Writes a random turn; gives the matcher and the text at every choice, and at the end."""
    choose, matcher, text = random.Random(seed), engine.start(turns), b""
    while True:
        tokens = matcher.forced()
        if not tokens:
            yield matcher, text
            if matcher.done:
                return
            tokens = [choose.choice(np.flatnonzero(matcher.mask()).tolist())]
            if set(tokens) & engine.tokens.eog:
                return
        matcher.accept(tokens)
        text += b"".join(engine.tokens.pieces[token] for token in tokens)


@pytest.mark.parametrize("seed", range(20))
def test_the_mask_is_what_is_allowed_and_holds_no_control_token(
    engine: OutlinesEngine, vocab: Vocab, seed: int
) -> None:
    for matcher, _ in walk(engine, TURN, seed):
        mask = matcher.mask()
        assert mask.tolist() == [matcher.allows(token) for token in range(vocab.size)]
        assert not mask[list((vocab.control | vocab.markers) - vocab.eog)].any()
        assert mask.any()


@pytest.mark.parametrize("seed", range(20))
def test_what_was_written_is_a_turn_and_stops_at_its_last_byte(engine: OutlinesEngine, seed: int) -> None:
    *_, (matcher, text) = walk(engine, TURN, seed)
    assert matcher.done
    assert BYTES.accepts(TURN, text.decode())
    assert np.flatnonzero(matcher.mask()).tolist() == sorted(engine.tokens.eog)


def test_what_is_forced_is_tokenized_as_the_model_does(engine: OutlinesEngine, vocab: Vocab) -> None:
    matcher = engine.start(TURN)
    assert matcher.forced() == list(vocab.encode_text('{"thought": "'))
    matcher.accept([*matcher.forced(), *vocab.encode_text('the end."')])
    assert matcher.forced() == list(vocab.encode_text(', "type": "'))  # then the alternatives part
    matcher.accept(matcher.forced())
    assert matcher.forced() == []
    assert [vocab.pieces[token] for token in np.flatnonzero(matcher.mask())] == [b"f", b"t"]


def test_forced_tokens_stop_where_tokenizations_part(vocab: Vocab) -> None:
    engine = OutlinesEngine.for_vocab(vocab)
    matcher = engine.start(grammar('"a{" ("\\"x" | "}")'))
    (brace,) = vocab.encode_text('{"')  # "{" alone would rule this token out
    assert matcher.forced() == list(vocab.encode_text("a"))
    matcher.accept(matcher.forced())
    assert matcher.allows(brace)


def test_a_tokenizer_that_puts_a_space_before_texts_is_asked_again() -> None:
    pieces = [bytes([byte]) for byte in range(256)] + [b" a", b"bc", b""]
    ids = {piece: token for token, piece in enumerate(pieces)}

    def encode(text: str) -> list[int]:
        tokens, rest = [], b" " + text.encode()
        while rest:
            length = 2 if rest[:2] in ids else 1
            tokens.append(ids[rest[:length]])
            rest = rest[length:]
        return tokens

    engine = OutlinesEngine(pieces, frozenset([258]), encode)
    assert engine.start(grammar('"abc"')).forced() == [ord("a"), 257]


def test_a_fork_goes_its_own_way(engine: OutlinesEngine, vocab: Vocab) -> None:
    matcher = engine.start(TURN)
    matcher.accept(matcher.forced())
    twin = matcher.fork()
    twin.accept(vocab.encode_text("abcdefghijkl"))
    assert twin.forced()
    assert not matcher.forced()
    assert matcher.allows(vocab.encode_text("x")[0])


def test_an_illegal_token_is_refused_and_changes_nothing(engine: OutlinesEngine, vocab: Vocab) -> None:
    matcher = engine.start(TURN)
    before = matcher.mask().tolist()
    with pytest.raises(GrammarError, match="aren't legal"):
        matcher.accept(vocab.encode_text("{x"))
    assert matcher.mask().tolist() == before
    with pytest.raises(GrammarError):
        matcher.accept([next(iter(vocab.eog))])


def test_end_of_generation_is_legal_where_a_line_may_end(engine: OutlinesEngine, vocab: Vocab) -> None:
    matcher = engine.start(grammar('"Final Answer: " /[^\\x00-\\x1f:：]/{2,20} ("\\n")?'))
    matcher.accept([*matcher.forced(), *vocab.encode_text("a")])
    end = min(vocab.eog)
    assert not matcher.allows(end)
    matcher.accept(vocab.encode_text("b"))
    assert matcher.allows(end)
    assert not matcher.done
    matcher.accept(vocab.encode_text("\n"))
    assert matcher.done


# --- what can't be compiled


def test_a_rule_that_begins_with_itself_is_an_error() -> None:
    rules = Rules(Ref("a"), {"a": Alt((Seq((Ref("a"), Text('"x"'))), Text('"y"')))})
    with pytest.raises(GrammarError, match="begins with itself"):
        BYTES.start(of_rules(rules))


def test_a_regex_that_outlines_does_not_know_is_an_error() -> None:
    with pytest.raises(GrammarError, match="can't index"):
        BYTES.start(grammar("/(?=a)b/"))


def test_a_large_bound_costs_nothing() -> None:
    character = Chars(((0x20, 0x10FFFF),))
    turns = of_rules(Rules(Seq((Text('"'), Repeat(character, 0, 100_000)))))
    assert BYTES.accepts(turns, '"' + "x" * 3000)

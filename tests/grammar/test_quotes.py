from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localreact.engines.llguidance import LLGuidanceEngine
from localreact.grammar.quotes import QUOTE_MIN, objection, source
from localreact.protocols import JsonProtocol, Protocol, TextProtocol
from localreact.types import Evidence, Finish, Source, TurnSpec

ENGINE = LLGuidanceEngine.over_bytes()
PROTOCOLS: list[Protocol] = [
    JsonProtocol(),
    JsonProtocol(finish="tool"),
    JsonProtocol(compact=True, first="type"),
    TextProtocol(),
]
ANSWER = Finish("I know it by now.", answer="three")

# Few characters, so that texts repeat themselves, and all that has to be escaped in JSON.
texts = st.text(st.sampled_from('ab" \\/n\n\t\x01\x7f\u2028三体é😀'), min_size=1, max_size=60)


def spec_of(*texts: str) -> TurnSpec:
    return TurnSpec(sources=tuple(Source(step, text) for step, text in enumerate(texts, 1)))


def accepts(protocol: Protocol, spec: TurnSpec, *evidence: Evidence) -> bool:
    finish = Finish(ANSWER.thought, answer=ANSWER.answer, evidence=evidence)
    return ENGINE.accepts(protocol.grammar(spec, "lark"), protocol.write(finish))


def accepts_escaped(protocol: Protocol, spec: TurnSpec, step: int, escaped: str) -> bool:
    """The same for what stands between the quotation marks, which may be no JSON."""
    evidence = (Evidence(step, "HERE"),)
    text = protocol.write(Finish(ANSWER.thought, answer=ANSWER.answer, evidence=evidence))
    return ENGINE.accepts(protocol.grammar(spec, "lark"), text.replace("HERE", escaped, 1))


@given(text=texts, data=st.data(), protocol=st.sampled_from(PROTOCOLS))
def test_every_stretch_that_is_long_enough_can_be_quoted(
    text: str, data: st.DataObject, protocol: Protocol
) -> None:
    start = data.draw(st.integers(0, max(0, len(text) - QUOTE_MIN)))
    quote = text[start : data.draw(st.integers(min(len(text), start + QUOTE_MIN), len(text)))]
    evidence = Evidence(1, quote)
    finish = Finish(ANSWER.thought, answer=ANSWER.answer, evidence=(evidence,))
    assert accepts(protocol, spec_of(text), evidence)
    assert protocol.parse(protocol.write(finish)) == finish
    assert not objection((evidence,), spec_of(text))


@given(text=texts, quote=texts, protocol=st.sampled_from(PROTOCOLS))
def test_grammar_and_check_agree_on_any_quote(text: str, quote: str, protocol: Protocol) -> None:
    evidence = Evidence(1, quote)
    assert accepts(protocol, spec_of(text), evidence) is not bool(objection((evidence,), spec_of(text)))


PAGES = (
    'The bridge "Tessel" is 640 metres long.\nIt was opened in 1934 by Piet Okoro; crossing costs 3 crowns.',
    '三体问题是天体力学中的基本力学模型。它"没有"一般的解析解。\n庞加莱在 1890 年证明了这一点。',
    'C:\\new\\table\\u0041.txt holds {"a": [1, 2, "\\\\n"]}\tand a bell \x07, said the log.',
    "short one",
)
LONG = "".join(f"Line {number} of the log says {number * 7919 % 1000}.\n" for number in range(40))


def made_up(chance: random.Random) -> tuple[int, str]:
    """A step and an escaped quote that is not to be had there."""
    step = chance.randrange(4)
    text = (*PAGES[:3], LONG)[step]
    start = chance.randrange(len(text) - 40)
    real = text[start : start + chance.randrange(12, 40)]
    at = chance.randrange(len(real))
    other = chance.choice('aeiou0123456789三。 \n"\\')
    escaped = json.dumps(real, ensure_ascii=False)[1:-1]
    quote: str | None = None
    match chance.randrange(9):
        case 0:
            quote = real[:at] + other + real[at + 1 :]
        case 1:
            quote = real[:at] + other + real[at:]
        case 2:
            quote = real[:at] + real[at + 1 :]
        case 3:
            quote = real[: chance.randrange(12)]
        case 4:
            step = (step + 1) % 4
            quote = real
        case 5:
            quote = real + text[chance.randrange(len(text)) :][:20]
        case 6:
            quote = real.swapcase()
        case 7:  # half an escape at its end, or its beginning
            escaped = chance.choice([escaped + "\\", escaped + "\\u00", "n" + escaped, '"' + escaped])
            return step + 1, escaped
        case 8:  # a letter in disguise
            rest = json.dumps(real[1:], ensure_ascii=False)[1:-1]
            return step + 1, f"\\u{ord(real[0]):04x}{rest}"
    assert quote is not None
    return step + 1, json.dumps(quote, ensure_ascii=False)[1:-1]


def test_a_thousand_attempts_to_quote_what_is_not_there_fail() -> None:
    spec = spec_of(*PAGES[:3], LONG)
    matchers = [(protocol, protocol.grammar(spec, "lark")) for protocol in PROTOCOLS]
    chance, refused = random.Random(7), 0
    while refused < 1000:
        step, escaped = made_up(chance)
        try:
            quote = json.loads(f'"{escaped}"')
        except ValueError:
            quote = None
        canonical = quote is not None and json.dumps(quote, ensure_ascii=False)[1:-1] == escaped
        if canonical and not objection((Evidence(step, quote),), spec):
            continue  # by chance it does stand there
        protocol, grammar = matchers[refused % len(matchers)]
        text = protocol.write(Finish(ANSWER.thought, answer="x", evidence=(Evidence(step, "HERE"),)))
        assert not ENGINE.accepts(grammar, text.replace("HERE", escaped, 1)), (step, escaped)
        refused += 1


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: f"{p.version}-{p!r:.40}")
def test_a_quote_is_cut_inside_no_escape(protocol: Protocol) -> None:
    spec = spec_of('one "two"\\n three\nfour five')  # a backslash before an n, and a newline
    for escaped in ('\\"two\\"\\\\n three', "\\\\n three\\nfour", "n three\\nfour five"):
        assert accepts_escaped(protocol, spec, 1, escaped)
    for escaped in (
        '"two\\"\\\\n three',
        "\\n three\\nfour",
        'one \\"two\\"\\\\n three\\',
        "nfour five more",
    ):
        assert not accepts_escaped(protocol, spec, 1, escaped)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: f"{p.version}-{p!r:.40}")
def test_a_short_observation_is_quoted_whole_or_not_at_all(protocol: Protocol) -> None:
    spec = spec_of('159 "ok"')
    assert accepts(protocol, spec, Evidence(1, '159 "ok"'))
    assert not accepts(protocol, spec, Evidence(1, "159"))
    assert not accepts(protocol, spec, Evidence(1, ""))


def test_the_number_and_the_length_of_quotes_are_bounded() -> None:
    spec = spec_of(LONG)
    for protocol in PROTOCOLS:
        one = Evidence(1, LONG[:300])
        assert accepts(protocol, spec, *[one] * 4)
        assert not accepts(protocol, spec, *[one] * 5)
        assert not accepts(protocol, spec, Evidence(1, LONG[:301]))
        assert not accepts(protocol, spec, Evidence(2, LONG[:300]))
        assert not accepts(protocol, spec)
        assert not accepts(protocol, spec_of(), one)
    assert "at most 4 quotes" in objection([one] * 5, spec)
    assert "at most 300 characters" in objection([Evidence(1, LONG[:301])], spec)


def test_an_observation_of_fifty_thousand_characters() -> None:
    chance = random.Random(3)
    text = "".join(chance.choice('三体问题的解"\\\n abcdefgh') for _ in range(50_000))
    spec, protocol = spec_of(text), JsonProtocol()
    for start in (0, 25_000, 49_900):
        quote = text[start : start + 90]
        assert accepts(protocol, spec, Evidence(1, quote))
        assert not accepts(protocol, spec, Evidence(1, quote[:60] + "!" + quote[60:]))
    assert accepts(protocol, spec, Evidence(1, text[-12:]))
    assert not accepts(protocol, spec, Evidence(1, text[-12:] + text[0]))


def test_what_was_left_out_and_the_mark_that_says_so_are_not_to_be_quoted() -> None:
    content = "word " * 20
    cut = source(3, content, content[:40] + " … [60 of 100 characters left out]")
    assert cut == Source(3, content[:40])
    assert source(3, content, content) == Source(3, content)
    assert source(3, content, " … [100 of 100 characters left out]") is None
    assert source(3, " \n", " \n") is None
    assert source(3, "broken \ud800 text", "broken \ud800 text") == Source(3, "broken ? text")

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localreact.errors import GrammarError, ProtocolError
from localreact.protocols import PROTOCOLS, JsonProtocol, Protocol, TextProtocol, protocol
from localreact.types import Evidence, Finish, Observation, Source, TurnSpec
from tests.specs import SEARCH

JSON, TEXT = JsonProtocol(), TextProtocol()
CITING: list[Protocol] = [JSON, JsonProtocol(finish="tool", compact=True), JsonProtocol(first="type"), TEXT]
FINISH = Finish(
    "I know it by now.",
    answer="It is 3.",
    evidence=(Evidence(1, 'a "quote"\nof two lines'), Evidence(12, "引用的文字\u2028\\")),
)


@pytest.mark.parametrize("protocol", CITING, ids=lambda p: f"{p.version}-{p!r:.40}")
def test_evidence_is_written_before_the_answer_and_read_back(protocol: Protocol) -> None:
    text = protocol.write(FINISH)
    assert protocol.parse(text) == FINISH
    assert text.index("of two lines") < text.index("It is 3.")


@given(
    quotes=st.lists(
        st.builds(Evidence, st.integers(0, 99), st.text(st.characters(codec="utf-8"))), max_size=3
    ),
    size=st.integers(1, 40),
)
@pytest.mark.parametrize("protocol", CITING, ids=lambda p: f"{p.version}-{p!r:.40}")
def test_streaming_shows_the_answer_after_the_evidence(
    protocol: Protocol, quotes: list[Evidence], size: int
) -> None:
    finish = Finish(FINISH.thought, answer=FINISH.answer, evidence=tuple(quotes))
    text, reader, shown = protocol.write(finish), protocol.reader(), dict[str, str]()
    assert protocol.parse(text) == finish
    for start in range(0, len(text), size):
        for field, piece in reader.feed(text[start : start + size]):
            shown[field] = shown.get(field, "") + piece
    assert shown == {"thought": finish.thought, "answer": finish.answer}


BROKEN = [
    "[]x",
    "{}",
    '"quote"',
    '[{"step": "1", "quote": "q"}]',
    '[{"step": true, "quote": "q"}]',
    '[{"step": 1.0, "quote": "q"}]',
    '[{"step": 1, "quote": 5}]',
    '[{"step": 1}]',
    '[{"quote": "q"}]',
    '[{"step": 1, "quote": "q", "url": "x"}]',
    '[{"step": 1, "quote": "q", "quote": "r"}]',
    '[["step", 1]]',
    "null",
]


@pytest.mark.parametrize("evidence", BROKEN)
def test_evidence_is_steps_and_quotes_and_nothing_else(evidence: str) -> None:
    for text in (
        f'{{"thought": "t", "type": "finish", "evidence": {evidence}, "answer": "4"}}',
        f'{{"thought": "t", "tool": "finish", "arguments": {{"evidence": {evidence}, "answer": "4"}}}}',
    ):
        with pytest.raises(ProtocolError):
            JSON.parse(text)
    with pytest.raises(ProtocolError):
        TEXT.parse(f"Thought: t\nEvidence: {evidence}\nFinal Answer: 4")


GIVEN = '[{"step": 1, "quote": "q"}]'


@pytest.mark.parametrize(
    ("protocol", "text"),
    [
        (JSON, f'{{"thought": "t", "type": "finish", "evidence": {GIVEN}}}'),
        (
            JSON,
            f'{{"thought": "t", "type": "finish", "evidence": {GIVEN}, '
            '"status": "insufficient", "missing": "m"}',
        ),
        (
            JSON,
            f'{{"thought": "t", "type": "tool_call", "evidence": {GIVEN}, "tool": "x", "arguments": {{}}}}',
        ),
        (TEXT, f"Thought: t\nEvidence: {GIVEN}"),
        (TEXT, f"Thought: t\nEvidence: {GIVEN} Final Answer: 4"),
        (TEXT, f"Thought: t\nEvidence: {GIVEN}\nInsufficient: all"),
        (TEXT, f"Thought: t\nEvidence: {GIVEN}\nAction: x\nAction Input: {{}}"),
        (TEXT, f"Thought: t\nEvidence: {GIVEN}\nEvidence: {GIVEN}\nFinal Answer: 4"),
        (TEXT, f"Thought: t\nFinal Answer: 4\nEvidence: {GIVEN}"),
        (TEXT, "Thought: the evidence: 4\nFinal Answer: 4"),
        (TEXT, "Thought: t\nFinal Answer: 证据：4"),
    ],
)
def test_evidence_belongs_to_an_answer_and_stands_before_it(protocol: Protocol, text: str) -> None:
    with pytest.raises(ProtocolError):
        protocol.parse(text)


def test_fields_in_any_order_are_read() -> None:
    text = f'{{"type": "finish", "answer": "4", "evidence": {GIVEN}, "thought": "t"}}'
    assert JSON.parse(text) == Finish("t", answer="4", evidence=(Evidence(1, "q"),))


def test_raw_control_characters_in_a_quote_are_repaired_and_counted() -> None:
    turn = TEXT.parse('Thought: t\nEvidence: [{"step": 1, "quote": "a\tb"}]\nFinal Answer: 4')
    assert isinstance(turn, Finish)
    assert (turn.evidence, turn.repaired) == ((Evidence(1, "a\tb"),), 1)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_where_citations_cannot_be_enforced_is_said(name: str) -> None:
    spec = TurnSpec(sources=(Source(1, "What a tool said."),))
    if name in ("json", "text"):
        assert "evidence" in protocol(name).grammar(spec, "lark").text
        with pytest.raises(GrammarError, match="citations can't be written in 'gbnf'"):
            protocol(name).grammar(spec, "gbnf")
    else:
        with pytest.raises(GrammarError, match=f"the {name} protocol has no place for citations"):
            protocol(name).grammar(spec, "lark")


def test_a_result_that_can_be_cited_shows_its_step() -> None:
    said = ["".join(s.text for s in each.observation(Observation("t", "ok"), 7)) for each in (JSON, TEXT)]
    assert json.loads(said[0]) == {"type": "tool_result", "step": 7, "result": "ok"}
    assert said[1] == "Observation: [step 7] ok"


def test_the_prompt_speaks_of_evidence_only_where_it_is_asked_for() -> None:
    for each in (JSON, TEXT):
        plain, citing = ("".join(s.text for s in each.instructions([SEARCH], cite)) for cite in (False, True))
        assert "evidence" not in plain
        assert "evidence" in citing

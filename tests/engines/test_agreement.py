"""The engines agree with each other and with JSON Schema on what a tool may be called with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from localreact.decoding.model import Model
from localreact.engines.gbnf import GbnfEngine
from localreact.engines.llguidance import LLGuidanceEngine
from localreact.engines.outlines import OutlinesEngine
from localreact.errors import ProtocolError
from localreact.grammar.lark import bounded
from localreact.grammar.schema import enforceable
from localreact.protocols import JsonProtocol, protocol
from localreact.types import Finish, Segment, ToolCall, ToolSpec, TurnGrammar, TurnSpec
from tests.schemas import Case, cases

CASES = list(cases())
LLGUIDANCE = LLGuidanceEngine.over_bytes()
OUTLINES = OutlinesEngine.over_bytes()


@pytest.fixture(scope="module")
def gbnf(tiny_gguf: Path) -> GbnfEngine:
    return GbnfEngine(Model(tiny_gguf).vocab)


def takes(engine: GbnfEngine, grammar: TurnGrammar, text: str) -> bool:
    matcher = engine.start(grammar)
    for token in engine.vocab.encode([Segment(text)]):
        if not matcher.allows(token):
            return False
        matcher.accept([token])
    return matcher.done


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_engines_and_validation_agree(gbnf: GbnfEngine, case: Case) -> None:
    spec = ToolSpec("t", "", case.schema)
    decisions = {}
    for language in ("lark", "gbnf", "slots"):
        enforced, left_out = enforceable(spec, language)
        assert not left_out
        decisions[language] = JsonProtocol().grammar(TurnSpec((enforced,), answer=False), language)
    validator = Draft202012Validator(
        bounded(case.schema, 1000), format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    for arguments in case.arguments:
        text = JsonProtocol().write(ToolCall("I call the tool.", "t", arguments))
        fits = validator.is_valid(arguments)
        assert LLGUIDANCE.accepts(decisions["lark"], text) == fits, arguments
        assert takes(gbnf, decisions["gbnf"], text) == fits, arguments
        assert OUTLINES.accepts(decisions["slots"], text) == fits, arguments


def test_there_are_enough_schemas_and_both_verdicts() -> None:
    assert len({str(case.schema) for case in CASES}) >= 200
    fits = [
        Draft202012Validator(bounded(case.schema, 1000)).is_valid(each)
        for case in CASES
        for each in case.arguments
    ]
    assert 0.3 < sum(fits) / len(fits) < 0.8


@pytest.mark.parametrize("blank", [" ", "\t", "\u00a0", "\u3000"])
@pytest.mark.parametrize(
    ("name", "line"),
    [("text", "Thought"), ("text", "Final Answer"), ("bracket", "Thought"), ("call", "Thought")],
)
def test_no_line_is_blank(gbnf: GbnfEngine, name: str, line: str, blank: str) -> None:
    """A vocabulary with a piece for many blanks found it: an answer of them is gone once it is read."""
    written, spec = protocol(name), TurnSpec()
    text = written.write(Finish("I look around.", "12"))
    for each in (text, re.sub(f"{line}: .*", f"{line}: {13 * blank}", text)):
        legal = each == text
        assert LLGUIDANCE.accepts(written.grammar(spec, "lark"), each) == legal
        assert takes(gbnf, written.grammar(spec, "gbnf"), each) == legal
        assert OUTLINES.accepts(written.grammar(spec, "slots"), each) == legal


@pytest.mark.parametrize("blank", [" ", "  ", "\u00a0", "\u3000 "])
@pytest.mark.parametrize("ending", ["finish[{}]", "finish[insufficient: {}]"])
def test_no_ending_in_brackets_is_blank(gbnf: GbnfEngine, ending: str, blank: str) -> None:
    written, spec = protocol("bracket"), TurnSpec(insufficient=True)
    for inner, legal in (("12 ", True), (blank, False)):
        text = f"Thought: I look around.\nAction: {ending.format(inner)}"
        assert LLGUIDANCE.accepts(written.grammar(spec, "lark"), text) == legal
        assert takes(gbnf, written.grammar(spec, "gbnf"), text) == legal
        assert OUTLINES.accepts(written.grammar(spec, "slots"), text) == legal
        if legal:
            assert written.parse(text)
        else:
            with pytest.raises(ProtocolError):
                written.parse(text)

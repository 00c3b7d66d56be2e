from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from localreact.errors import GrammarError, UsageError
from localreact.examples import examples_for
from localreact.grammar.answers import answer_type
from localreact.grammar.exclude import without
from localreact.grammar.schema_rules import schema_rules
from localreact.grammar.validation import Validator, check_schema, endless, found, outward
from localreact.types import ToolSpec

ELSEWHERE = {"$ref": "http://127.0.0.1:9/x"}
SLOW = "^(a+)+$"
STUCK = "a" * 60 + "!"


@pytest.fixture(autouse=True)
def nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(*of: Any, **more: Any) -> None:
        pytest.fail("it was fetched")

    monkeypatch.setattr(urllib.request, "urlopen", fetched)


def test_a_reference_out_of_a_schema_is_not_followed_wherever_values_are_checked() -> None:
    schema = {"type": "object", "properties": {"k": ELSEWHERE}}
    with pytest.raises(GrammarError, match="followed"):
        Validator(schema).fits({"k": 1})
    assert outward({"not": ELSEWHERE}) == (
        ("not", "$ref"),
        f"the reference {ELSEWHERE['$ref']!r} leads out of the schema",
    )
    with pytest.raises(UsageError, match="leads out"):
        answer_type({"not": ELSEWHERE})
    with pytest.raises(GrammarError, match="followed"):
        schema_rules({**schema, "enum": [{"k": 1}]})
    with pytest.raises(GrammarError, match="followed"):
        without(ToolSpec("t", "", schema), [{"k": 1}])
    required = {**schema, "required": ["k"]}
    assert [each.arguments for _, each in examples_for((ToolSpec("t", "", required),), 1)] == []


def test_a_value_may_look_like_a_reference() -> None:
    assert outward({"properties": {"$ref": {"type": "string"}}, "enum": [{"$ref": "http://x"}]}) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/none"},
        {"$ref": "#/enum/0", "enum": ["object"]},
    ],
)
def test_a_reference_that_leads_to_no_schema_is_an_error_of_ours(schema: Any) -> None:
    with pytest.raises(GrammarError, match="followed"):
        Validator(schema).fits({"a": 1})


def test_what_doubles_with_every_reference_is_not_followed_to_its_end() -> None:
    twice = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    schema = {"$defs": {**twice, "a40": {"type": "string"}}, "$ref": "#/$defs/a0"}
    with pytest.raises(GrammarError, match="references"):
        Validator(schema).fits("x")
    with pytest.raises(GrammarError, match="too many"):
        schema_rules(schema)
    assert Validator({**schema, "$ref": "#/$defs/a35"}).fits("x")


def test_a_pattern_takes_time_in_proportion_to_the_text() -> None:
    began = time.monotonic()
    assert not found(SLOW, STUCK)
    schema = {"type": "string", "pattern": SLOW, "enum": [STUCK, "aaa"]}
    assert [Validator({"pattern": SLOW}).fits(each) for each in (STUCK, "aaa")] == [False, True]
    rules, _ = schema_rules(schema)
    assert json.dumps("aaa") in str(rules)
    schema_rules({"type": "object", "patternProperties": {SLOW: {}}, "required": [STUCK]})
    by_name = Validator({"patternProperties": {SLOW: {"type": "null"}}, "additionalProperties": False})
    assert [by_name.fits({name: None}) for name in (STUCK, "aaa")] == [False, True]
    required = {"type": "object", "properties": {"k": schema}, "required": ["k"]}
    assert examples_for((ToolSpec("t", "", required),), 2) == []
    assert time.monotonic() - began < 10


@pytest.mark.filterwarnings("ignore:Possible nested set")  # Python's, of [[
@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"properties": {"k": {"pattern": r"^(?=.*\d)x"}}}, ("properties", "k", "pattern")),
        ({"not": {"patternProperties": {r"(a)\1": {}}}}, ("not", "patternProperties")),
        ({"pattern": "((a{900}){900}){900}"}, ("pattern",)),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, ("unevaluatedProperties",)),
        ({"pattern": r"^[[\]{}]+|{$", "unevaluatedProperties": False}, None),
        ({"properties": {"pattern": {"type": "string"}}}, None),
    ],
)
def test_what_only_backtracking_can_check_is_told(schema: Any, at: Any) -> None:
    check_schema(schema)
    told = endless(schema)
    assert (told and told[0]) == at


def test_what_looks_around_is_checked_all_the_same() -> None:
    validator = Validator({"pattern": r"^(?=.*\d)\w+$"})
    assert [validator.fits(text) for text in ("ab1", "ab")] == [True, False]


@pytest.mark.parametrize("pattern", ["a{99999999999999999999}", "(" * 5000 + "a" + ")" * 5000])
def test_a_pattern_that_cannot_be_read_is_no_schema(pattern: str) -> None:
    with pytest.raises(SchemaError):
        check_schema({"pattern": pattern})


PATTERNS = [
    r"^\w+$",
    r"[^a-c]",
    r"^a|b$",
    r"\d{2,3}",
    r"^[\w.-]+@x\.y$",
    r"^[^[\]]+$",
    "a--b",
    "^.*$",
    "^$",
    "é",
]


@pytest.mark.filterwarnings("ignore:Possible nested set")
@given(st.sampled_from(PATTERNS), st.text("abcé@x.y-[]12 ", max_size=8))
def test_patterns_mean_what_they_mean_to_others(pattern: str, text: str) -> None:
    assert found(pattern, text) == Draft202012Validator({"pattern": pattern}).is_valid(text)


NAMES = st.dictionaries(st.text("ab1", max_size=3), st.none() | st.integers(), max_size=3)


@given(NAMES, st.sampled_from([False, True, {"type": "integer"}]))
def test_members_are_judged_as_others_judge_them(value: Any, further: Any) -> None:
    schema = {"properties": {"a": {}}, "patternProperties": {"b$": {"type": "null"}, "1": {}}}
    for each in (schema, {**schema, "additionalProperties": further}):
        assert Validator(each).fits(value) == Draft202012Validator(each).is_valid(value)

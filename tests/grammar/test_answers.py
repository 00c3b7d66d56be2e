from __future__ import annotations

import dataclasses
import datetime
import enum
import re
from typing import Any, Literal

import jsonschema
import outlines.types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from localreact.errors import AnswerError, UsageError
from localreact.grammar.answers import AnswerType, answer_type
from localreact.grammar.schema import problem


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    name: str
    founded: datetime.date
    height: int | None = None

    @field_validator("name")
    @classmethod
    def _capital(cls, name: str) -> str:
        if not name[:1].isupper():
            raise ValueError("a name begins with a capital")
        return name


class Dated(BaseModel):
    when: outlines.types.date  # type: ignore[valid-type]  # outlines' types are instances


@dataclasses.dataclass
class Point:
    x: float
    y: float


CASES: list[tuple[Any, Any, Any, Any]] = [
    # kind, a JSON value, the Python value, a JSON value that isn't one
    (Literal["yes", "no"], "yes", "yes", "maybe"),
    (Literal[1, 2], 2, 2, 3),
    (int, 10**30, 10**30, "x"),
    (bool, True, True, "x"),
    (str, 'a "b"', 'a "b"', 3),
    (list[str], ["a", "b"], ["a", "b"], [1]),
    (tuple[int, str], [1, "a"], (1, "a"), [1]),
    (int | None, None, None, "x"),
    (Colour, "red", Colour.RED, "green"),
    (datetime.date, "2024-02-29", datetime.date(2024, 2, 29), "2024-02-30"),
    (Point, {"x": 1, "y": 2.5}, Point(1.0, 2.5), {"x": 1}),
    (Place, {"name": "Oslo", "founded": "1048-01-01"}, Place(name="Oslo", founded="1048-01-01"), {}),  # type: ignore[arg-type]
    (re.compile("[A-Z]{2}[0-9]+"), "AB12", "AB12", "xAB12"),
    (re.compile("a|b"), "b", "b", "ab"),
    ({"type": "integer", "minimum": 3}, 3, 3, 2),
    (outlines.types.Regex("a+"), "aa", "aa", "aab"),
    (outlines.types.date, "2024-02-01", "2024-02-01", "2024-13-01"),
    (outlines.types.integer, "-12", "-12", "012"),
    (outlines.types.string, "any text", "any text", 1),
    (outlines.types.JsonSchema({"type": "array", "items": {"type": "integer"}}), [1], [1], ["a"]),
    (outlines.types.Choice(["low", "high"]), "low", "low", "middle"),
    (outlines.types.Choice([1, 2]), 1, 1, 3),
    (outlines.types.either("a", outlines.types.digit.exactly(2)), "42", "42", "4"),
]


@pytest.mark.parametrize(("kind", "value", "expected", "wrong"), CASES)
def test_a_value_is_read_as_what_was_asked_for(kind: Any, value: Any, expected: Any, wrong: Any) -> None:
    answer = answer_type(kind)
    assert answer.read(value) == expected
    assert type(answer.read(value)) is type(expected)
    with pytest.raises(AnswerError):
        answer.read(wrong)


@pytest.mark.parametrize(("kind", "value", "expected", "wrong"), CASES)
def test_the_schema_holds_what_is_read(kind: Any, value: Any, expected: Any, wrong: Any) -> None:
    schema = answer_type(kind).schema
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(value, schema)
    assert not problem(schema)  # a grammar can be made of it
    if wrong != "2024-02-30":  # that there is no such day, a schema doesn't know
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@given(st.text(max_size=8))
def test_a_regex_holds_the_whole_answer(text: str) -> None:
    answer = answer_type(re.compile("a*b|c"))
    legal = re.fullmatch("a*b|c", text) is not None
    assert (re.search(answer.schema["pattern"], text) is not None and not text.endswith("\n")) == legal


def test_outlines_types_inside_a_model_hold_the_whole_string() -> None:
    answer = answer_type(Dated)
    assert answer.read({"when": "2024-02-01"}).when == "2024-02-01"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"when": "on 2024-02-01 or so"}, answer.schema)


def test_what_a_schema_cannot_say_is_checked_when_reading() -> None:
    with pytest.raises(AnswerError, match=r"at /name .*begins with a capital"):
        answer_type(Place).read({"name": "oslo", "founded": "1048-01-01"})


def test_a_format_that_a_schema_asks_for_is_checked_when_reading() -> None:
    answer = answer_type({"type": "string", "format": "date"})
    assert answer.read("2031-02-03") == "2031-02-03"
    with pytest.raises(AnswerError, match="date"):
        answer.read("2031-13-45")


def test_a_ready_answer_type_is_kept() -> None:
    answer = AnswerType({"type": "string"}, str)
    assert answer_type(answer) is answer


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("[a-z]+", "re.compile"),
        (re.compile("yes", re.IGNORECASE), "IGNORECASE"),
        (re.compile(b"yes"), "not of bytes"),
        ({"type": "strin"}, "broken at"),
        (outlines.types.CFG("start: 'a'"), "CFG"),
        (object(), "can't be the type"),
        (type("Plain", (), {}), "Plain can't be the type"),
        (3, "can't be the type"),
    ],
)
def test_what_is_no_type_of_an_answer_is_refused(kind: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        answer_type(kind)

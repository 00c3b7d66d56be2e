from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from localreact.errors import ToolDefinitionError, UsageError
from localreact.examples import examples_for
from localreact.tools import Tool, Toolbox, tool
from localreact.tools.builtin import load_tools
from localreact.types import ToolCall, ToolSpec


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("", name, arguments)


def test_the_schema_comes_from_hints_and_docstring() -> None:
    @tool
    def forecast(
        city: str, days: Annotated[int, Field(ge=1, le=7)] = 3, unit: Literal["c", "f"] = "c"
    ) -> str:
        """Tell the weather.

        Looks ahead a week at most.

        Args:
            city: where
            days: how far
        """
        return f"{city} {days} {unit}"

    assert forecast.spec.description == "Tell the weather. Looks ahead a week at most."
    assert forecast.spec.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where"},
            "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 3, "description": "how far"},
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert forecast("Oslo") == "Oslo 3 c"  # it still is the function
    assert Toolbox([forecast]).execute(call("forecast", city="Oslo", days=7)).content == "Oslo 7 c"


def test_a_parameter_is_described_by_its_docstring_or_else_by_its_hint() -> None:
    @tool
    def forecast(
        city: Annotated[str, Field(description="in English")],
        days: Annotated[int, Field(description="how many")] = 3,
        unit: str = "c",
    ) -> str:
        """The weather of the coming days.

        Args:
            days: today is the first
        """
        return ""

    described = {
        name: each.get("description") for name, each in forecast.spec.parameters["properties"].items()
    }
    assert described == {"city": "in English", "days": "today is the first", "unit": None}


def test_arguments_arrive_as_the_types_of_the_hints() -> None:
    class Item(BaseModel):
        name: str
        due: date

    @tool
    def plan(items: list[Item], note: str | None = None) -> str:
        return f"{items[0].due.year} {type(items[0]).__name__} {note}"

    arguments = {"items": [{"name": "x", "due": "2031-02-03"}]}
    assert Toolbox([plan]).execute(ToolCall("", "plan", arguments)).content == "2031 Item None"
    refused = Toolbox([plan]).execute(ToolCall("", "plan", {"items": [{"name": "x", "due": "soon"}]}))
    assert not refused.ok


def no_hint(a, b: int) -> int:  # type: ignore[no-untyped-def]
    return b


def star(*args: int) -> int:
    return 0


def unknown_type(a: Callable[[], int]) -> int:
    return 0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_hint, "parameter 'a' has no type hint"),
        (star, r"\*args"),
        (unknown_type, "can't be expressed"),
    ],
)
def test_a_function_that_cannot_be_offered_is_an_error(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ToolDefinitionError, match=message):
        tool(function)


def test_two_tools_of_one_name_are_an_error_that_names_it() -> None:
    def f(a: int) -> int:
        return a

    with pytest.raises(ToolDefinitionError, match="two tools are named 'f'"):
        Toolbox([f, f])


@pytest.mark.parametrize("name", ["finish", "Finish", "", "a b", "x" * 65, "a\nb", "a<|im_end|>"])
def test_names_that_cannot_be_used(name: str) -> None:
    def f(a: int) -> int:
        return a

    made = tool(f)
    with pytest.raises(ToolDefinitionError, match="can't be named"):
        Toolbox([type(made)(type(made.spec)(name, "", made.spec.parameters), made.function)])


@dataclass
class Point:
    x: int
    y: float


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, "done (no result)"),
        (159, "159"),
        (b"\xffbytes", "\ufffdbytes"),
        ({"é": [1, None, True]}, '{"é": [1, null, true]}'),
        ((i * i for i in range(4)), "[0, 1, 4, 9]"),
        ({3}, "[3]"),
        (float("nan"), "nan"),
        ([float("inf")], '["inf"]'),
        (Point(1, 2.5), '{"x": 1, "y": 2.5}'),
        (date(2031, 2, 3), "2031-02-03"),
        (10**30, str(10**30)),
    ],
)
def test_results_of_any_type_become_text(value: object, text: str) -> None:
    @tool
    def give() -> object:
        return value

    assert Toolbox([give]).execute(call("give")).content == text


def test_endless_results_end() -> None:
    @tool
    def count() -> object:
        return iter(int, 1)

    items = json.loads(Toolbox([count]).execute(call("count")).content)
    assert items[999:] == [0, "[stopped after 1000 items]"]


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("division by zero"), SystemExit(3), KeyError("k"), ValueError()]
)
def test_whatever_a_tool_raises_is_an_observation(error: BaseException) -> None:
    @tool
    def fail() -> str:
        raise error

    observation = Toolbox([fail]).execute(call("fail"))
    assert (observation.ok, observation.executed) == (False, True)
    assert observation.content.startswith(type(error).__name__)


def test_ctrl_c_in_a_tool_is_passed_on() -> None:
    @tool
    def interrupted() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Toolbox([interrupted]).execute(call("interrupted"))


def test_unknown_tools_and_invalid_arguments_are_told_and_not_executed() -> None:
    ran = []

    @tool
    def order(quantity: Annotated[int, Field(ge=1)]) -> str:
        ran.append(quantity)
        return "ordered"

    box = Toolbox([order])
    unknown = box.execute(call("Use order"))
    assert unknown.content == "there is no tool 'Use order'; the tools are: order"
    for arguments in ({}, {"quantity": 0}, {"quantity": "2"}, {"quantity": 1, "extra": 2}):
        refused = box.execute(ToolCall("", "order", arguments))
        assert not refused.executed
        assert refused.content.startswith("invalid arguments at")
    assert not ran


def test_big_integers_and_text_reach_the_tool_unchanged() -> None:
    got = []

    @tool
    def keep(number: int, text: str) -> None:
        got.append((number, text))

    value = (10**30 + 7, 'a\n\t"\\ Observation: none 日本 😀')
    assert Toolbox([keep]).execute(call("keep", number=value[0], text=value[1])).ok
    assert got == [value]


def test_a_tool_without_parameters_is_called_with_none() -> None:
    for parameters in ({}, {"type": "object"}, {"type": "object", "properties": {}}):
        box = Toolbox([Tool(ToolSpec("ping", "", parameters), lambda: "pong")])
        assert box.specs[0].parameters["properties"] == {}
        assert box.execute(call("ping")).content == "pong"


def test_parameters_may_have_any_name() -> None:
    @tool
    def odd(copy: int, model_validate: str, json: bool = True) -> str:
        return f"{copy} {model_validate} {json}"

    assert list(odd.spec.parameters["properties"]) == ["copy", "model_validate", "json"]
    assert Toolbox([odd]).execute(call("odd", copy=1, model_validate="x")).content == "1 x True"


def test_a_schema_with_a_dead_reference_is_told_and_fetched_from_nowhere() -> None:
    for target in ("#/$defs/nothing", "http://127.0.0.1:9/schema.json"):
        spec = ToolSpec("f", "", {"properties": {"a": {"$ref": target}}, "required": ["a"]})
        box = Toolbox([Tool(spec, lambda a: a)])
        assert "can't be applied" in box.execute(call("f", a=1)).content
        assert examples_for(box.specs, 1) == []


def test_examples_are_made_for_the_tools_at_hand() -> None:
    @tool
    def book(city: str, nights: Annotated[int, Field(ge=2)], kind: Literal["single", "double"]) -> str:
        """Book a room."""
        return ""

    shown = examples_for((book.spec, *(t.spec for t in load_tools(["calculator"], None))), 2)
    assert [name for name, _ in shown] == ["calculator", "book", "book", "calculator"]
    assert [shown[i][1].arguments for i in (1, 2)] == [
        {"city": "alpha", "nights": 2, "kind": "single"},
        {"city": "bravo", "nights": 2, "kind": "double"},
    ]
    assert shown[1][1].question == "Book a room: alpha, 2, single"


def test_tools_are_loaded_by_name_or_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from localreact import tool\n"
        "@tool\ndef one(a: int) -> int:\n    'One.'\n    return a\n"
        "@tool\ndef two(a: int) -> int:\n    'Two.'\n    return a\n"
    )
    assert [t.name for t in load_tools([str(path)], None)] == ["one", "two"]
    assert [t.name for t in load_tools([f"{path}:two", "lookup", "calculator"], None)] == [
        "two",
        "lookup",
        "calculator",
    ]
    hidden = tmp_path / ".pyenv" / "dated.py"
    hidden.parent.mkdir()
    hidden.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom localreact import tool\n"
        "@dataclass\nclass Day:\n    n: int\n"
        "@tool\ndef three(day: Day) -> int:\n    'Three.'\n    return day.n\n"
    )
    assert Toolbox(load_tools([str(hidden)], None)).execute(call("three", day={"n": 3})).content == "3"
    path.with_name("broken.py").write_text("raise RuntimeError('no')")
    for wrong, message in [
        ("nothing", "no tool 'nothing'"),
        (f"{path}:three", "no tool 'three'"),
        (str(tmp_path / "nowhere.py"), "no file"),
        (str(path.with_name("broken.py")), "RuntimeError: no"),
    ]:
        with pytest.raises(UsageError, match=message):
            load_tools([wrong], None)

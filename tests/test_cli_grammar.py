from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.test_cli import localreact

CALL = '{"thought": "I need to compute.", "type": "tool_call", "tool": "calculator", "arguments": %s}'


def test_the_grammar_of_a_turn_is_shown() -> None:
    done = localreact("grammar", "show", "-T", "calculator", "--protocol", "text")
    assert done.returncode == 0
    assert "Action: calculator" in done.stdout
    assert "FREE" in done.stdout


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (CALL % '{"expression": "1+1"}', 0),
        (CALL % '{"expression": 2}', 1),
        (CALL % '{"expression": "1+1"}' + '{"type": "tool_result", "result": "2"}', 1),
        ("The answer is 2.", 1),
        ("", 1),
    ],
)
def test_a_text_is_tried(text: str, code: int) -> None:
    assert localreact("grammar", "check", "--accepts", text).returncode == code


@pytest.mark.parametrize("protocol", ["json", "text", "bracket", "call"])
def test_a_grammar_of_slots_is_shown(protocol: str) -> None:
    done = localreact("grammar", "show", "-T", "calculator", "--protocol", protocol, "--engine", "outlines")
    assert done.returncode == 0
    assert ("{12,400}" if protocol == "json" else "FIRST LINE{11,399}") in done.stdout


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (CALL % '{"expression": "1+1"}', 0),
        (CALL % '{"expression": 2}', 1),
        (CALL % '{"expression": "1+1"}' + '{"type": "tool_result", "result": "2"}', 1),
    ],
)
def test_a_text_is_tried_on_slots(text: str, code: int) -> None:
    assert localreact("grammar", "check", "--engine", "outlines", "--accepts", text).returncode == code


def test_every_slot_is_indexed_and_none_takes_for_ever(tmp_path: Path) -> None:
    strings = [
        {"format": "hostname"},
        {"pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"},
        {"pattern": "[ab][a-c]{0,40}x"},
        {"pattern": "^([ab][a-c]{1,20}){1,5}$"},
    ]
    path = tmp_path / "schema.json"
    path.write_text(
        json.dumps({"properties": {f"p{i}": {"type": "string", **each} for i, each in enumerate(strings)}})
    )
    done = localreact("grammar", "check", "--engine", "outlines", "--schema", str(path))  # or a timeout
    assert (done.returncode, done.stdout) == (0, "the grammar compiles: tool\n")


def test_relaxations_are_reported(tmp_path: Path) -> None:
    definition = {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"a": {"not": {"const": 1}}}}},
    }
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([definition]))
    done = localreact("grammar", "check", "-T", str(path), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "tools": ["f"],
        "relaxations": [{"tool": "f", "pointer": "/properties/a", "keyword": "not"}],
        "accepted": None,
    }


@pytest.mark.parametrize("protocol", ["json", "text", "bracket", "call"])
def test_a_grammar_for_llama_cpp_is_shown_and_tried_without_a_model(protocol: str) -> None:
    shown = localreact("grammar", "show", "--engine", "gbnf", "--protocol", protocol)
    assert shown.returncode == 0
    assert "root ::= call-0 | finish" in shown.stdout
    if protocol == "json":
        for text, code in ((CALL % '{"expression": "1+1"}', 0), (CALL % '{"expression": 2}', 1)):
            assert localreact("grammar", "check", "--engine", "gbnf", "--accepts", text).returncode == code


def test_relaxations_are_those_of_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 5}}}')
    checked = {
        engine: localreact("grammar", "check", "--schema", str(path), "--engine", engine, "--json")
        for engine in ("llguidance", "gbnf")
    }
    assert json.loads(checked["llguidance"].stdout)["relaxations"] == []
    assert json.loads(checked["gbnf"].stdout)["relaxations"] == [
        {"tool": "tool", "pointer": "/properties/n", "keyword": "multipleOf"}
    ]
    assert localreact("grammar", "check", "--engine", "free").returncode == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"properties": {"a": {"pattern": "^hi(!$"}}}', "$.properties.a.pattern"),
        ('{"properties": {"a": {"$ref": "#/$defs/gone"}}}', "/properties/a"),
        ("{", "is not JSON"),
        ("[]", "no JSON Schema object"),
    ],
)
def test_a_schema_that_cannot_be_used_exits_with_2(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text(content)
    done = localreact("grammar", "check", "--schema", str(path))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr

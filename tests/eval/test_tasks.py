from __future__ import annotations

import json
from pathlib import Path

import pytest

from localreact.errors import UsageError
from localreact.eval.arms import arm, arms_of
from localreact.eval.tasks import open_suite, read_suite
from localreact.tools.knowledge import EXAMPLE_FOLDER
from tests.eval.lab import write_suite

GOOD = '{"id": "a", "question": "q", "tools": ["calculator"], "check": {"number": 1}}\n'
SHIPPED = {
    "react30": 30,
    "multihop": 30,
    "forgery": 24,
    "protocol18": 18,
    "loops": 12,
    "native": 20,
    "framework": 15,
}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "b", "question": ', "line 3 is not JSON"),
        ("[1]", "line 3 is no object"),
        ('{"question": "q", "check": {"number": 1}}', "line 3: a task needs 'id'"),
        ('{"id": "b", "question": " ", "check": {"number": 1}}', "line 3: a task needs 'question'"),
        ('{"id": "b/c", "question": "q", "check": {"number": 1}}', "line 3: an id has letters"),
        ('{"id": "a", "question": "q", "check": {"number": 1}}', "line 3: the id 'a' is taken by line 1"),
        ('{"id": "b", "question": "q"}', "line 3: the check is an object"),
        ('{"id": "b", "question": "q", "check": {"numbr": 1}}', "line 3: there is no check 'numbr'"),
        ('{"id": "b", "question": "q", "check": {"number": 1}, "tol": 1}', "line 3: there is no field 'tol'"),
        ('{"id": "b", "question": "q", "check": {"number": 1}, "tools": "x"}', "line 3: tools is a list"),
        ('{"id": "b", "question": "q", "check": {"number": 1}, "group": 1}', "line 3: the group is a text"),
        (
            '{"id": "b", "question": "q", "check": {"number": 1}, "policy": {"steps": 1}}',
            "line 3: there is no field 'steps'",
        ),
        (
            '{"id": "b", "question": "q", "check": {"number": 1}, "tools": ["serch"]}',
            "line 3: there is no tool 'serch'",
        ),
        (
            '{"id": "b", "question": "q", "check": {"number": 1}, "tools": ["none.py:x"]}',
            "line 3: there is no file",
        ),
        ('{"suite": {}}', "line 3: what is common to the tasks stands on the first line only"),
    ],
)
def test_a_wrong_line_is_named(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "suite.jsonl"
    path.write_text(GOOD + "\n" + line + "\n" + GOOD.replace('"a"', '"z"'))
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        open_suite(str(path))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"arm": []}, "there is no field 'arm'"),
        ({"arms": "json/free"}, "lists of texts"),
        ({"tools": {"a": "x"}}, "lists of texts"),
        ({"docs": 1}, "docs has the wrong type"),
        ({"policy": {"steps": 1}}, "there is no field 'steps'"),
    ],
)
def test_a_wrong_header_is_named(header: dict[str, object], said: str, tmp_path: Path) -> None:
    path = tmp_path / "suite.jsonl"
    path.write_text(json.dumps({"suite": header}) + "\n" + GOOD)
    with pytest.raises(UsageError, match=f"line 1: .*{said}"):
        read_suite(path)


def test_no_task_and_no_suite(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="holds no task"):
        open_suite(str(tmp_path / "empty.jsonl"))
    with pytest.raises(UsageError, match="there is no suite 'react31'") as raised:
        open_suite("react31")
    assert "forgery, framework, loops, multihop, native, protocol18, react30" in raised.value.hint


def test_a_suite_names_sets_of_tools_and_a_policy(tmp_path: Path) -> None:
    header = {"tools": {"stocks": ["tools.py:stock", "calculator"]}, "policy": {"max_steps": 3, "cite": True}}
    suite = open_suite(
        str(write_suite(tmp_path, {"tools": ["stocks"], "policy": {"cite": False}}, header=header))
    )
    assert [tool.name for tool in suite.load_tools(suite.tasks[0])] == ["stock", "calculator"]
    assert suite.tasks[0].policy == {"max_steps": 3, "cite": False}


@pytest.mark.parametrize(("name", "count"), SHIPPED.items())
def test_shipped_suites(name: str, count: int) -> None:
    suite = open_suite(name)
    assert len(suite.tasks) == count
    assert {"en", "zh"} <= {tag for task in suite.tasks for tag in task.tags}
    assert arms_of((), suite)
    for preset in suite.presets:
        assert arms_of([preset], suite)


def test_what_multihop_asks_for_stands_in_the_shipped_knowledge_base() -> None:
    suite = open_suite("multihop")
    pages = "\n".join(" ".join(path.read_text("utf-8").split()) for path in EXAMPLE_FOLDER.glob("*.md"))
    assert sum(not task.answerable for task in suite.tasks) == 10
    for task in suite.tasks:
        assert all(each in pages for each in task.evidence), task.id
        assert len(task.evidence) == {"unanswerable": 0, "two hops": 2, "three hops": 3}[task.group]


def test_arms() -> None:
    chosen = arm("text/free+stops+nogate")
    assert chosen.name == "text/free+nogate+stops"
    assert chosen.settings == {"protocol": "text", "evidence_gate": False}
    assert (arm("native").name, arm("native").settings) == ("native", {"protocol": "native"})
    assert arm("card/llguidance+cite").settings == {"protocol": None, "cite": True}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("json", "there is no arm 'json'"),
        ("native/free", "there is no arm 'native/free'"),
        ("native+stops", "there is no arm 'native"),
        ("yaml/free", "there is no arm 'yaml/free'"),
        ("json/magic", "there is no arm"),
        ("json/free+fast", "there is no option 'fast'"),
        ("json/llguidance+stops", "stop strings end turns only where no grammar does"),
    ],
)
def test_no_such_arm(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        arm(text)


def test_presets_and_arms_together() -> None:
    suite = open_suite("react30")
    names = [each.name for each in arms_of(["buys", "json/llguidance", "bracket/free"], suite)]
    assert names == [
        "json/llguidance",
        "json/free+stops",
        "text/llguidance",
        "text/free+stops",
        "bracket/free",
    ]
    with pytest.raises(UsageError, match="no arm 'bys'") as raised:
        arms_of(["bys"], suite)
    assert "Presets of react30: buys" in raised.value.hint

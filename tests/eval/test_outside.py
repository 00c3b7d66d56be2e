"""Adapters, over files of our own in the others' formats."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from localreact.errors import MissingPartError, UsageError
from localreact.eval.outside import bfcl
from localreact.eval.outside.imports import import_suite
from localreact.eval.report import write_report
from localreact.eval.tasks import open_suite
from localreact.types import ToolCall
from tests.eval.lab import plan_of, run
from tests.test_cli import localreact

AREA = {
    "name": "area.rectangle",
    "description": "Area of a rectangle.",
    "parameters": {
        "type": "dict",
        "properties": {
            "sides": {"type": "tuple", "items": {"type": "float"}, "description": "Both sides."},
            "unit": {"type": "string", "enum": ["m", "cm"], "optional": True},
            "type": {"type": "any", "description": "Anything."},
        },
        "required": ["sides"],
    },
}
HOTPOT = [
    {
        "_id": "q/1",
        "question": "Who is the mayor of the town where Mira was born?",
        "answer": "Ines Dahl",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [["Mira", 0], ["Calder", 1], ["Calder", 9]],
        "context": [
            ["Mira", ["Mira was born in Calder.", " She was a metallurgist."]],
            ["Calder", ["Calder is a town.", " Its mayor is  Ines Dahl."]],
            ["Orrin", ["Orrin is a lake."]],
        ],
    }
]


def lines(path: Path, *records: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in records))


def bfcl_folder(place: Path) -> Path:
    def task(name: str, *functions: Any) -> dict[str, Any]:
        return {"id": name, "question": [[{"role": "user", "content": f"{name}?"}]], "function": functions}

    other = {**AREA, "name": "area.circle"}
    truth = [{"area.rectangle": {"sides": [[2.0, 3.0]], "unit": ["", "m"]}}]
    lines(place / "BFCL_v4_simple_python.json", task("simple_python_0", AREA), task("simple_python_1", AREA))
    lines(place / "BFCL_v4_multiple.json", task("multiple_0", AREA, other))
    lines(place / "BFCL_v4_irrelevance.json", task("irrelevance_0", other))
    answers = place / "possible_answer"
    lines(
        answers / "BFCL_v4_simple_python.json",
        *({"id": f"simple_python_{number}", "ground_truth": truth} for number in range(2)),
    )
    lines(answers / "BFCL_v4_multiple.json", {"id": "multiple_0", "ground_truth": truth})
    return place


def call(tool: str, **arguments: Any) -> str:
    return f"Thought: I call it.\nAction: {tool}\nAction Input: {json.dumps(arguments)}"


DONE = "Thought: It is done.\nFinal Answer: done\n"


def test_types_become_those_of_json_schema() -> None:
    assert bfcl.as_schema(AREA["parameters"]) == {
        "type": "object",
        "properties": {
            "sides": {"type": "array", "items": {"type": "number"}, "description": "Both sides."},
            "unit": {"type": "string", "enum": ["m", "cm"]},
            "type": {"description": "Anything."},
        },
        "required": ["sides"],
    }


def test_bfcl_with_its_own_checker(tmp_path: Path) -> None:
    pytest.importorskip("bfcl_eval")
    path = import_suite("bfcl", bfcl_folder(tmp_path / "data"), tmp_path / "suite")
    right, wrong = call("area.rectangle", sides=[2.0, 3.0]), call("area.rectangle", sides=[2.0, 4.0])
    replies = [right, DONE, wrong, DONE, right, DONE, DONE]
    run(plan_of(path), tmp_path / "out", replies)
    (figures,) = write_report(tmp_path / "out", html=False)["arms"]
    assert {group: share["count"] for group, share in figures["groups"].items()} == {
        "simple_python": 1,
        "multiple": 1,
        "irrelevance": 1,
    }
    three = {name: figures["ledgers"][name] for name in ("parseable", "schema_valid", "correct")}
    assert {name: (share["count"], share["of"]) for name, share in three.items()} == {
        "parseable": (4, 4),
        "schema_valid": (4, 4),
        "correct": (3, 4),
    }


def test_without_its_package_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = import_suite("bfcl", bfcl_folder(tmp_path / "data"), tmp_path / "suite", limit=1)
    assert len(path.read_text().splitlines()) == 4
    bfcl.checker.cache_clear()
    monkeypatch.setitem(sys.modules, "bfcl_eval.eval_checker.ast_eval.ast_checker", None)
    with pytest.raises(MissingPartError, match="pip install bfcl-eval"):
        open_suite(str(path))
    assert "bfcl_eval.constants.model_config" not in sys.modules
    bfcl.checker.cache_clear()


def test_no_call_is_no_valid_call() -> None:
    pytest.importorskip("bfcl_eval")
    check = {
        "category": "simple_python",
        "function": [AREA],
        "answer": [{"area.rectangle": {"sides": [[2.0]]}}],
    }
    assert bfcl.is_valid(check, [ToolCall("", "area.rectangle", {"sides": [2.0]})])
    assert not bfcl.is_valid(check, [])


def test_hotpotqa_has_a_knowledge_base_for_every_question(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text(json.dumps(HOTPOT))
    path = import_suite("hotpotqa", tmp_path / "dev.json", tmp_path / "suite")
    (task,) = open_suite(str(path)).tasks
    assert (task.id, task.group, task.tags) == ("q_1", "bridge", ("hard",))
    assert task.evidence == ("Mira was born in Calder.", "Its mayor is Ines Dahl.")
    replies = [
        call("search", query="Mira"),
        call("lookup", title="Calder"),
        "Thought: I know it now.\nFinal Answer: the Ines Dahl.\n",
    ]
    run(plan_of(path), tmp_path / "out", replies)
    (figures,) = write_report(tmp_path / "out", html=False)["arms"]
    assert figures["success"]["count"] == 1
    assert (figures["evidence"]["count"], figures["evidence"]["of"]) == (2, 2)


def test_the_command_prints_the_suite(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text(json.dumps(HOTPOT))
    done = localreact("eval", "import", "hotpotqa", str(tmp_path / "dev.json"), "-o", str(tmp_path / "suite"))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'suite' / 'hotpotqa.jsonl'}\n")


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("squad", "[]", "no adapter for 'squad'"),
        ("hotpotqa", "{}", "no list of questions"),
        ("hotpotqa", "[", "can't be read"),
        ("hotpotqa", '[{"_id": "x"}]', "question 1 is none of HotpotQA's"),
        ("bfcl", "", "holds no file such as BFCL_v4_multiple.json"),
    ],
)
def test_other_files_are_an_error(kind: str, content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "source").write_text(content)
    with pytest.raises(UsageError, match=said):
        import_suite(kind, tmp_path / "source", tmp_path / "suite")


def test_a_task_of_bfcl_that_is_none_is_named(tmp_path: Path) -> None:
    lines(tmp_path / "BFCL_v4_irrelevance.json", {"id": "irrelevance_0", "question": []})
    with pytest.raises(UsageError, match=r"line 1 is no task of BFCL"):
        import_suite("bfcl", tmp_path, tmp_path / "suite")
    with pytest.raises(UsageError, match="at least one task"):
        import_suite("bfcl", tmp_path, tmp_path / "suite", limit=0)

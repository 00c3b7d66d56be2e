"""The Berkeley Function Calling Leaderboard: its simple, multiple and irrelevance tasks, its own checker.

Reads the files of the package `bfcl-eval` (or of its repository), version 3 or 4. A task is judged by its
call alone, with the package's AST checker: whether a call is what was asked for is theirs to say.
"""

from __future__ import annotations

import functools
import json
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from localreact.errors import MissingPartError, UsageError
from localreact.types import ToolCall

CATEGORIES = ("simple", "simple_python", "multiple", "irrelevance")
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_MODEL = "localreact"


def records(place: Path, out: Path) -> Iterator[dict[str, Any]]:
    """The tasks of a folder of BFCL files (`data` in the package), tool definitions written beside them.

    Raises:
        UsageError: there are no such files, or they are something else.
    """
    found = [
        (category, path) for category in CATEGORIES for path in sorted(place.glob(f"BFCL_v?_{category}.json"))
    ]
    if not found:
        raise UsageError(
            f"{place} holds no file such as BFCL_v4_multiple.json",
            "Give the folder bfcl_eval/data of the package bfcl-eval.",
        )
    (out / "tools").mkdir(parents=True, exist_ok=True)
    for category, path in found:
        answers = {}
        if category != "irrelevance":
            answers = {
                each["id"]: each["ground_truth"] for each in _lines(place / "possible_answer" / path.name)
            }
        for number, each in enumerate(_lines(path), 1):
            try:
                yield _task(category, each, answers, out)
            except (KeyError, TypeError, IndexError) as error:
                raise UsageError(f"{path}, line {number} is no task of BFCL: {error!r}") from error


def _task(category: str, each: Mapping[str, Any], answers: Mapping[str, Any], out: Path) -> dict[str, Any]:
    functions = each["function"]
    definitions = [
        {"name": f["name"], "description": f["description"], "parameters": as_schema(f["parameters"])}
        for f in functions
    ]
    file = f"tools/{each['id']}.json"
    (out / file).write_text(json.dumps(definitions, ensure_ascii=False, indent=1) + "\n", "utf-8")
    task = {
        "id": each["id"],
        "group": category,
        "question": each["question"][0][-1]["content"],
        "tools": [file],
    }
    if category == "irrelevance":
        return {**task, "check": {"uncalled": True}, "policy": {"max_steps": 2, "evidence_gate": False}}
    check = {"category": category, "function": functions, "answer": answers[each["id"]]}
    return {**task, "check": {"bfcl": check}, "policy": {"max_steps": 2, "tool_choice": "required"}}


def as_schema(parameters: Any) -> Any:
    """BFCL's parameters as JSON Schema: it names types as Python does."""
    if isinstance(parameters, list):
        return [as_schema(each) for each in parameters]
    if not isinstance(parameters, Mapping):
        return parameters
    schema = {key: as_schema(value) for key, value in parameters.items() if key != "optional"}
    if "properties" in parameters:
        schema["properties"] = {name: as_schema(value) for name, value in parameters["properties"].items()}
    if isinstance(kind := schema.get("type"), str):
        schema["type"] = _TYPES.get(kind, kind)
        if kind == "any":
            del schema["type"]
    return schema


def is_valid(check: Mapping[str, Any], calls: Iterable[ToolCall]) -> bool:
    """Whether BFCL's checker takes the calls."""
    output = [{call.tool: dict(call.arguments)} for call in calls]
    return bool(checker()(check["function"], output, check["answer"], check["category"]))


@functools.cache
def checker() -> Callable[[Any, Any, Any, str], bool]:
    """The package's AST checker, for Python.

    It imports a client for every model that the leaderboard knows, only to look up how a model spells dots
    in names. A list with our one entry stands in for that, so that none of those clients is needed.

    Raises:
        MissingPartError: the package isn't installed.
    """
    name = "bfcl_eval.constants.model_config"
    stand_in = types.ModuleType(name)
    entry = types.SimpleNamespace(underscore_to_dot=False)
    vars(stand_in)["MODEL_CONFIG_MAPPING"] = {_MODEL: entry}
    before = sys.modules.get(name)
    sys.modules[name] = stand_in
    try:
        from bfcl_eval.constants.enums import Language
        from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
    except ImportError as error:
        raise MissingPartError(
            f"checking tasks of BFCL needs its own package: {error}", "Run: pip install bfcl-eval"
        ) from error
    finally:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before

    def check(functions: Any, output: Any, answer: Any, category: str) -> bool:
        if not output:
            return False
        return bool(ast_checker(functions, output, answer, Language.PYTHON, category, _MODEL)["valid"])

    return check


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} can't be read as BFCL's: {error}") from error

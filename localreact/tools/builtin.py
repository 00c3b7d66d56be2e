"""From what people write after -T to tools."""

from __future__ import annotations

import importlib.util
import re
import sys
import threading
from pathlib import Path
from types import ModuleType

from localreact.errors import UsageError
from localreact.tools.calculator import calculator
from localreact.tools.clock import clock
from localreact.tools.decorator import Tool
from localreact.tools.files import Files
from localreact.tools.knowledge import EXAMPLE_FOLDER, KnowledgeBase
from localreact.tools.python import python
from localreact.tools.scoring import score
from localreact.tools.web import http_get

NAMES = ("calculator", "search", "lookup", "clock", "list", "read", "grep", "python", "score", "http_get")
DEFAULT = ("calculator", "search")
_FILE = re.compile(r"(.+\.py)(?::(\w+))?")


def load_tools(names: list[str], docs: Path | None, root: Path | None = None) -> list[Tool]:
    """Tools by name, or from a Python file (`FILE.py`: all its tools; `FILE.py:NAME`: one).

    `search` and `lookup` read the folder `docs`, or the shipped example without one; `list`, `read` and
    `grep` the folder `root`, or the current one.

    Raises:
        UsageError: an unknown name, or a file that holds no such tool.
    """
    tools: list[Tool] = []
    knowledge: KnowledgeBase | None = None
    plain = {each.name: each for each in (calculator, clock, python, score)}
    for name in names:
        if name in plain:
            tools.append(plain[name])
        elif name in ("search", "lookup"):
            knowledge = knowledge or KnowledgeBase(docs or EXAMPLE_FOLDER)
            tools += [each for each in knowledge.tools() if each.name == name]
        elif name in ("list", "read", "grep"):
            tools += [each for each in Files(root or ".").tools() if each.name == name]
        elif name == "http_get":
            tools.append(http_get())
        elif file := _FILE.fullmatch(name):
            tools += _from_file(Path(file[1]).expanduser(), file[2])
        else:
            raise UsageError(
                f"there is no tool {name!r}",
                f"Built in: {', '.join(NAMES)}. Your own: -T FILE.py or -T FILE.py:NAME.",
            )
    return tools


def _from_file(path: Path, wanted: str | None) -> list[Tool]:
    module = _run(path)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Tool)}
    if wanted:
        found = {key: value for key, value in found.items() if wanted in (key, value.name)}
    if not found:
        what = f"no tool {wanted!r}" if wanted else "no tool"
        raise UsageError(f"{path} holds {what}", "Mark functions with @tool (from localreact import tool).")
    return list(found.values())


_running = threading.RLock()
"""One file at a time: another thread that runs the same one would change what its names mean."""


def _run(path: Path) -> ModuleType:
    name = f"localreact_tools_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"there is no file {path}", "Give the path of a Python file with tools in it.")
    module = importlib.util.module_from_spec(spec)
    with _running:
        sys.modules[name] = module  # type hints and dataclasses look their module up there
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # the file is the user's code
            raise UsageError(f"{path} can't be run: {type(error).__name__}: {error}") from error
    return module

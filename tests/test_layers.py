"""Dependency runs downward only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import localreact

PACKAGE = Path(localreact.__file__).parent

LAYERS = [
    ["__init__", "__main__"],
    ["cli"],
    ["commands"],
    ["terminal", "replay"],
    ["eval", "bench", "serve"],
    ["agent"],
    ["assembly", "teams"],
    ["sittings"],
    ["recorded", "observers"],
    ["native", "fitting"],
    ["loop", "asyncs"],
    ["window"],
    ["policy", "guards", "checks", "compaction", "archive", "context", "examples", "paging", "plans"],
    ["budgets"],
    ["run"],
    ["tools"],
    ["endpoints"],
    ["decoding", "engines"],
    ["protocols"],
    ["grammar"],
    ["trace"],
    ["types", "errors", "resources", "words", "pages", "_version"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def test_every_module_imports_only_from_its_own_layer_or_below() -> None:
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("localreact"):
                part = node.module.split(".")[1:2]
                names = part or [alias.name for alias in node.names]
            for name in names:
                assert RANK[name] >= RANK[here], f"{path.name} ({here}) imports {name}, which lies above it"


def test_nothing_that_acts_reads_leniently() -> None:
    """The lenient readers are for ledgers: only what measures may import them."""
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] not in ("bench", "eval"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                named = [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
                named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not [name for name in named if "lenient" in name], path


def test_no_module_outgrows_one_room() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text("utf-8").splitlines()) <= 400, path


def test_importing_needs_no_extra() -> None:
    code = (
        "import sys; sys.modules['llama_cpp'] = None; import localreact; "
        "assert not {'outlines', 'torch', 'llm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names() -> None:
    assert localreact.__all__ == [
        "Agent",
        "Call",
        "Check",
        "Guards",
        "LocalReactError",
        "Run",
        "Sampling",
        "ScriptedEndpoint",
        "Step",
        "Tool",
        "ToolExample",
        "Toolbox",
        "__version__",
        "tool",
    ]

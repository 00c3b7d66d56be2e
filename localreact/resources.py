"""Finds the folders that ship beside the code: `grammars`, `models`, and of `benchmarks` the suites.

In a wheel they lie inside the package; in a checkout (an editable install) beside it.
"""

from __future__ import annotations

from pathlib import Path

from localreact.errors import MissingPartError


def folder(name: str) -> Path:
    package = Path(__file__).resolve().parent
    for candidate in (package / name, package.parent / name):
        if candidate.is_dir():
            return candidate
    raise MissingPartError(
        f"the folder {name!r} that ships with localreact is missing (looked beside {package})",
        "Reinstall localreact.",
    )

"""Tool specifications that several tests share."""

from __future__ import annotations

from localreact.types import ToolSpec


def one_string(name: str, parameter: str) -> ToolSpec:
    """A tool that takes one string and nothing else."""
    return ToolSpec(
        name,
        f"{name.capitalize()} something.",
        {
            "type": "object",
            "properties": {parameter: {"type": "string"}},
            "required": [parameter],
            "additionalProperties": False,
        },
    )


SEARCH = one_string("search", "query")

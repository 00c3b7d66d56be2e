"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from localreact.decoding.model import ALL_LAYERS


def _layers(text: str | int) -> int:
    """A number of layers, or `all`."""
    if text == "all":
        return ALL_LAYERS
    try:
        layers = int(text)
    except ValueError:
        layers = ALL_LAYERS - 1
    if layers < ALL_LAYERS:
        raise typer.BadParameter(f"{text!r} is neither a number of layers nor all")
    return layers


GpuLayers = Annotated[
    int,
    typer.Option(
        "-ngl",
        "--gpu-layers",
        parser=_layers,
        metavar="N|all",
        help="Layers that a GPU evaluates, from the last one on; all or -1: every one. Takes a "
        "llama-cpp-python that is built for it.",
    ),
]

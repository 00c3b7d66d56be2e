"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from localreact.decoding.model import ALL_LAYERS
from localreact.endpoints.address import KINDS


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

Model = Annotated[
    str,
    typer.Option(
        "-m",
        "--model",
        envvar="LOCALREACT_MODEL",
        help=f"A model's name, a GGUF file, or a server: KIND:URL#MODEL, where KIND is {', '.join(KINDS)}.",
    ),
]
Context = Annotated[int | None, typer.Option(help="Tokens of context. Default: as the model card says.")]
Threads = Annotated[
    int | None,
    typer.Option(
        "-t", "--threads", help="Threads that evaluate the model. Default: physical cores it may use."
    ),
]
ChatTemplate = Annotated[
    Path | None, typer.Option(help="A file with a Jinja chat template, instead of the model's own.")
]
Docs = Annotated[Path | None, typer.Option(help="Folder of text or Markdown files for search and lookup.")]
Root = Annotated[
    Path | None, typer.Option(help="Folder that list, read and grep look at. Default: the current one.")
]

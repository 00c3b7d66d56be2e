"""The command line. Parses, calls, prints; everything else is elsewhere.

Exit codes: 0 the run finished; 1 it ended otherwise; 2 wrong use, or a part is missing.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from localreact._version import __version__
from localreact.commands.bench import bench
from localreact.commands.cache import cache
from localreact.commands.eval import evaluation
from localreact.commands.grammar import grammar
from localreact.commands.probe import probe
from localreact.commands.run import run
from localreact.commands.serve import serve
from localreact.commands.trace import trace
from localreact.errors import LocalReactError
from localreact.terminal import printable

app = typer.Typer(
    name="localreact",
    help="ReAct agents out of models that can only complete text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"localreact {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """ReAct agents out of models that can only complete text."""


app.command()(run)
app.command()(probe)
app.command()(serve)
app.add_typer(grammar, name="grammar")
app.add_typer(trace, name="trace")
app.add_typer(cache, name="cache")
app.add_typer(bench, name="bench")
app.add_typer(evaluation, name="eval")


def main() -> None:
    """The command, with errors as messages and the exit codes above."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # an answer in Chinese must not fail on a Latin terminal
    try:
        app()
    except LocalReactError as error:
        print(f"localreact: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)

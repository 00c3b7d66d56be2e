"""`localreact bench`: how fast turns are decoded, and beside what."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from localreact.bench import report as reports
from localreact.bench.scale import AXES, scale_table, scale_up
from localreact.bench.speed import load_report
from localreact.bench.speed import speed as measure
from localreact.bench.workload import KINDS, QUESTIONS
from localreact.endpoints.resolve import DEFAULT_MODEL
from localreact.errors import UsageError
from localreact.terminal import print_json

bench = typer.Typer(help="Measure how fast turns are decoded.", no_args_is_help=True)

ModelOption = Annotated[str, typer.Option("-m", "--model", help="A model's name, or a GGUF file.")]
ThreadsOption = Annotated[int | None, typer.Option("-t", "--threads", help="Default: the physical cores.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
PlotOption = Annotated[Path | None, typer.Option(help="Draw it: a .png or .svg file (extra `bench`).")]
SaveOption = Annotated[Path | None, typer.Option(help="Write the result as JSON here.")]


@bench.command()
def speed(
    model: ModelOption = DEFAULT_MODEL,
    kind: Annotated[str, typer.Option(help=f"Kind of turns: {', '.join(KINDS)}.")] = "usual",
    questions: Annotated[int, typer.Option(help=f"Questions, up to {len(QUESTIONS)}.")] = 20,
    rounds: Annotated[int, typer.Option(help="Times that every arm writes every turn.")] = 3,
    engine: Annotated[
        list[str] | None, typer.Option(help="Other engines to measure: gbnf, outlines. May be repeated.")
    ] = None,
    llama_server: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|URL", help="A llama-server to start, or the address of one with this file."
        ),
    ] = None,
    guidance: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="Interpreter of an environment that has guidance.")
    ] = None,
    own: Annotated[
        bool, typer.Option("--own", help="Without create_completion, which takes most of the time.")
    ] = False,
    threads: ThreadsOption = None,
    as_document: JsonOption = False,
    save: SaveOption = None,
    plot: PlotOption = None,
) -> None:
    """Decode the same turns in several ways, interleaved in one process."""
    chosen = next((each for each in KINDS if each == kind), None)
    if chosen is None:
        raise UsageError(f"there is no kind of turns {kind!r}", f"Kinds: {', '.join(KINDS)}.")
    if not 1 <= questions <= len(QUESTIONS) or rounds < 1:
        raise UsageError(f"questions are 1 to {len(QUESTIONS)}, rounds 1 or more")
    _check_places(save, plot)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=1.0)
        found = measure(
            model,
            chosen,
            questions,
            rounds,
            engine or [],
            threads,
            llama_server,
            guidance,
            not own,
            lambda done: bar.update(task, completed=done),
        )
    document = found.as_json()
    _keep(document, save, plot)
    if as_document:
        print_json(document)
        return
    Console(width=None if sys.stdout.isatty() else 160).print(reports.table(document))
    for line in reports.notes(document):
        print(line)


@bench.command()
def scale(
    model: ModelOption = DEFAULT_MODEL,
    axis: Annotated[str, typer.Option(help=f"What grows: {', '.join(AXES)}.")] = "tools",
    threads: ThreadsOption = None,
    as_document: JsonOption = False,
    save: SaveOption = None,
    plot: PlotOption = None,
) -> None:
    """Let one thing grow, and see what a turn costs."""
    if axis not in AXES:
        raise UsageError(f"nothing called {axis!r} can grow", f"What can: {', '.join(AXES)}.")
    _check_places(save, plot)
    document = scale_up(model, axis, threads)
    _keep(document, save, plot)
    if as_document:
        print_json(document)
        return
    Console().print(scale_table(document))


@bench.command()
def compare(
    before: Annotated[Path, typer.Argument(help="A result saved by `bench speed --save`.")],
    after: Annotated[Path, typer.Argument(help="Another, of the same model and kind.")],
) -> None:
    """Two results, arm by arm."""
    old, new = load_report(before), load_report(after)
    if old["benchmark"] != "speed" or new["benchmark"] != "speed":
        raise UsageError("only results of `bench speed` are compared")
    Console().print(reports.compare(old, new))
    if (old["model"], old["kind"]) != (new["model"], new["kind"]):
        print("these are different models or kinds of turns", file=sys.stderr)


@bench.command("plot")
def draw(
    results: Annotated[list[Path], typer.Argument(help="Results that `--save` kept.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="A .png or .svg file.")],
) -> None:
    """Draw saved results side by side (extra `bench`)."""
    reports.plot([load_report(each) for each in results], out)


def _check_places(*paths: Path | None) -> None:
    """Before an hour's work, not after it."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{path} can't be written: there is no folder {path.parent}")


def _keep(document: dict[str, Any], save: Path | None, plot: Path | None) -> None:
    if save is not None:
        try:
            save.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", "utf-8")
        except OSError as error:
            raise UsageError(f"{save} can't be written: {error.strerror}") from error
    if plot is not None:
        reports.plot([document], plot)

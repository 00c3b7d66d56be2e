"""`localreact eval`: the evaluation lab."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from typer.core import TyperGroup

from localreact.commands.options import Context, GpuLayers, Threads
from localreact.commands.play import play
from localreact.endpoints.resolve import DEFAULT_MODEL
from localreact.errors import UsageError
from localreact.eval import plots
from localreact.eval.arms import arms_of
from localreact.eval.cluster import execute_on_ray
from localreact.eval.compare import as_text, compare
from localreact.eval.journal import Done, Journal
from localreact.eval.outside.imports import KINDS, import_suite
from localreact.eval.report import name_of, told, write_report
from localreact.eval.runner import Opening, Plan, execute
from localreact.eval.tasks import open_suite
from localreact.terminal import print_json, printable
from localreact.types import Sampling


class Executor(Enum):
    LOCAL = "local"
    RAY = "ray"


class _SuiteFirst(TyperGroup):
    """`eval SUITE …` is `eval run SUITE …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


evaluation = typer.Typer(
    cls=_SuiteFirst,
    help="Run suites of tasks, and see who failed: the model, a parser, or an endpoint.",
    no_args_is_help=True,
)

Html = Annotated[bool, typer.Option("--html/--no-html", help="Write report.html too (the extra 'eval').")]


@evaluation.command("run")
def run(
    suite: Annotated[str, typer.Argument(help="A suite's name, or a JSON Lines file of tasks.")],
    arms: Annotated[
        list[str] | None,
        typer.Option(
            help="What to compare: PROTOCOL/ENGINE and options, as in json/llguidance or text/free+stops; of "
            "a server also native and langgraph; or a preset of the suite; several with commas. Default: the "
            "suite's."
        ),
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option("-m", "--models", help="What `run -m` takes; several with commas.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often every task is run.")] = 1,
    jobs: Annotated[int, typer.Option("-j", "--jobs", help="Tasks at a time (servers, clusters).")] = 1,
    executor: Annotated[
        Executor,
        typer.Option(
            help="ray: spread the tasks over a Ray cluster (RAY_ADDRESS, or this machine), with -j replicas "
            "of the model (the extra 'ray')."
        ),
    ] = Executor.LOCAL,
    retries: Annotated[int, typer.Option(help="New attempts of a task when its endpoint failed.")] = 2,
    temp: Annotated[float, typer.Option(help="Temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the first round; the others count on from it.")] = 0,
    ctx: Context = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = 0,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic", help="Bit for bit the same runs in every greedy round, at some cost in speed."
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder of the results. Default: eval-SUITE here.")
    ] = None,
    html: Html = True,
) -> None:
    """Run a suite (`run` may be left out). Started again, it goes on where it was stopped.

    Exit code 0: every task was measured; 1: some weren't; 2: wrong use, or a part is missing.
    """
    opened = open_suite(suite)
    plan = Plan(
        opened,
        tuple(dict.fromkeys(_models(models))) or (DEFAULT_MODEL,),
        arms_of(_listed(arms), opened),
        rounds,
        Sampling(temperature=temp, seed=seed),
        retries,
        jobs,
        Opening(ctx, threads, deterministic, gpu_layers),
    )
    if html:
        plots.check_available()  # before an hour's work, not after it
    folder = out or Path(f"eval-{opened.name}")
    with closing(Journal(folder, opened, plan.settings)) as journal:
        todo = [item.key for item in plan.items]
        run_all = execute_on_ray if executor is Executor.RAY else execute
        with _cancelled_by_interrupt() as cancel, closing(run_all(plan, journal, cancel)) as running:
            _follow(
                running, len(todo), sum(key in journal.done and not journal.done[key].lost for key in todo)
            )
        measured = sum(key in journal.done and not journal.done[key].lost for key in todo)
    _print_summary(write_report(folder, html), folder)
    if measured < len(todo):
        print(
            f"{len(todo) - measured} of {len(todo)} tasks aren't measured; the same command goes on",
            file=sys.stderr,
        )
    raise typer.Exit(0 if measured == len(todo) else 1)


@evaluation.command("report")
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of an evaluation.")], html: Html = True
) -> None:
    """Compute all figures anew from the traces, and write the reports."""
    _print_summary(write_report(folder, html), folder)


@evaluation.command("compare")
def compare_arms(
    first: Annotated[str, typer.Argument(metavar="A", help="FOLDER, FOLDER#ARM or FOLDER#ARM@MODEL.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    as_document: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Compare two arms on the tasks that both have done, pair by pair (of greedy rounds the first)."""
    compared = compare(first, second)
    if as_document:
        print_json(compared)
    else:
        print(printable(as_text(compared)))


@evaluation.command("import")
def import_outside(
    kind: Annotated[str, typer.Argument(help=f"Whose tasks: {', '.join(KINDS)}.")],
    source: Annotated[Path, typer.Argument(help="Where they lie: BFCL's folder of data, HotpotQA's file.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the suite.")],
    limit: Annotated[int | None, typer.Option(help="Tasks of each group, at most.")] = None,
) -> None:
    """Make a suite of somebody else's tasks, from where you have them; prints the suite's file."""
    print(import_suite(kind, source, out, limit))


evaluation.command("play")(play)


def _listed(values: Iterable[str] | None) -> list[str]:
    """Several values, whether in one option or in several."""
    found = [part.strip() for value in values or () for part in value.split(",")]
    if "" in found:
        raise UsageError("an empty name stands among the arms or models", "Write them as A,B.")
    return found


def _models(values: Iterable[str] | None) -> list[str]:
    """A URL that doesn't say its server's kind is another replica of the server before it."""
    found: list[str] = []
    for part in _listed(values):
        if found and part.startswith(("http://", "https://")):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _follow(running: Iterator[Done], total: int, before: int) -> None:
    """A bar on a terminal; elsewhere nothing until the end."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=total, completed=before)
        for done in running:
            progress.update(bar, advance=1, description=printable(f"{done.arm} {done.task}"))


@contextmanager
def _cancelled_by_interrupt() -> Iterator[threading.Event]:
    """The first Ctrl-C ends the evaluation after the turn, a second at once."""
    cancel = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if cancel.is_set():
            raise KeyboardInterrupt
        cancel.set()

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, previous)


def _print_summary(summary: dict[str, Any], folder: Path) -> None:
    """One line per arm; the files have the rest."""
    arms = summary["arms"]
    for arm in arms:
        ledgers = arm["ledgers"]
        parts = [
            f"{name_of(arm, arms)}: {told(arm['success'])}",
            *(
                f"{title} {told(ledgers[name])}"
                for title, name in (("no turn", "format_failure"), ("forged", "forged"))
            ),
        ]
        if lost := arm["infrastructure"]["tasks_lost"]:
            parts.append(f"{lost} lost to the endpoint")
        print(printable(" · ".join(parts)))
    print(f"{folder / 'summary.md'}", file=sys.stderr)

"""`localreact trace`: look at recorded runs. Needs no model."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from localreact.commands.show import show_trace
from localreact.endpoints.resolve import open_endpoint
from localreact.errors import UsageError
from localreact.replay import replay as replayed
from localreact.terminal import print_json, printable
from localreact.tools.builtin import load_tools
from localreact.trace import store
from localreact.trace.html import page
from localreact.trace.jsonl import read_trace
from localreact.trace.reading import load
from localreact.trace.steps import Stats, diff, stats_of

trace = typer.Typer(help="Look at recorded runs: list, show, count, compare, replay.", no_args_is_help=True)

NameArgument = Annotated[
    str, typer.Argument(metavar="TRACE", help="A file, a run's id or the beginning of one, or last.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@trace.command("list")
def list_(
    limit: Annotated[int, typer.Option("-n", help="So many at most, the newest first; 0 is all.")] = 20,
    as_document: JsonOption = False,
) -> None:
    """List the traces that runs left in the user's state folder."""
    rows = [_row(each) for each in store.listing(limit or None)]
    if as_document:
        print_json(rows)
        return
    for row in rows:
        if row["status"] is None:
            print(printable(f"{row['run_id']}  unreadable: {row['problem']}"))
            continue
        steps = f"{row['steps']} step{'s' * (row['steps'] != 1)}"
        question = "↳ " * bool(row["parent"]) + " ".join(row["question"].split())
        line = f"{row['run_id']}  {row['status']:<16} {steps:>9} {row['seconds']:>8.1f} s  {question}"
        print(printable(line if len(line) <= 140 else line[:139] + "…"))


def _row(listed: store.Listed) -> dict[str, Any]:
    row: dict[str, Any] = {"run_id": listed.path.stem, "path": str(listed.path), "status": None}
    if listed.trace is None:
        return row | {"problem": listed.problem}
    began, stats = listed.trace.started, stats_of(listed.trace)
    when = datetime.datetime.fromtimestamp(listed.trace.entries[0].at, datetime.timezone.utc)
    return row | {
        "run_id": began.run_id,
        "status": stats.status,
        "began": when.isoformat(timespec="seconds"),
        "steps": stats.steps,
        "seconds": round(stats.seconds, 3),
        "tokens": stats.usage.generated,
        "model": began.model,
        "parent": began.parent or None,
        "question": began.question,
    }


@trace.command()
def show(
    name: NameArgument,
    prompts: Annotated[bool, typer.Option(help="Also what was new in each prompt.")] = False,
    as_document: Annotated[bool, typer.Option("--json", help="Print the events as JSON.")] = False,
) -> None:
    """Show a run as it was seen on the terminal."""
    path = store.find(name)
    if as_document:
        print_json(read_trace(path))
    else:
        show_trace(load(path), prompts)


@trace.command()
def stats(name: NameArgument, as_document: JsonOption = False) -> None:
    """Count a run's tokens by author, its seconds by part, its calls and refusals."""
    counted = stats_of(load(store.find(name)))
    document = _stats(counted)
    if as_document:
        print_json(document)
        return
    rows = [("run", counted.run_id), ("status", counted.status), ("steps", str(counted.steps))]
    if counted.sittings > 1:
        rows.append(("sittings", str(counted.sittings)))
    rows += [("tokens " + part, str(number)) for part, number in document["tokens"].items()]
    rows += [("seconds " + part, f"{number:.3f}") for part, number in document["seconds"].items()]
    rows += [("refused turns", str(counted.refused))]
    rows += [(f"turns ended: {stop}", str(number)) for stop, number in document["stops"].items()]
    for tool, use in counted.tools.items():
        rows.append((f"calls of {tool}", f"{use.calls} ({use.failed} failed, {use.refused} not made)"))
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        print(printable(f"{label:<{width}}  {value}"))


def _stats(counted: Stats) -> dict[str, Any]:
    usage, timings = counted.usage, counted.timings
    return {
        "run_id": counted.run_id,
        "status": counted.status,
        "steps": counted.steps,
        "sittings": counted.sittings,
        "tokens": {
            "sampled": usage.sampled,
            "forced": usage.forced,
            "of reasoning": usage.reasoning,
            "of other agents' runs": counted.inner.generated,
            "of prompts, evaluated": usage.prompt - usage.reused,
            "of prompts, reused": usage.reused,
        },
        "masks": usage.masks,
        "seconds": {
            "reading prompts": round(timings.prompt_s, 6),
            "writing turns": round(timings.generate_s, 6),
            "of it in the grammar": round(timings.constraint_s, 6),
            "in tools": round(counted.tool_s, 6),
            "elsewhere": round(counted.other_s, 6),
            "in all": round(counted.seconds, 6),
        },
        "refused": counted.refused,
        "stops": dict(counted.stops),
        "tools": {tool: dataclasses.asdict(use) for tool, use in counted.tools.items()},
    }


@trace.command("diff")
def diff_(a: NameArgument, b: NameArgument, as_document: JsonOption = False) -> None:
    """Compare two runs step by step. Exit code 0: they are the same; 1: they differ."""
    differences = diff(load(store.find(a)), load(store.find(b)))
    if as_document:
        print_json([dataclasses.asdict(each) for each in differences])
    elif not differences:
        print("no difference")
    else:
        steps = sorted({each.step for each in differences if each.step})
        if steps:
            print(f"first in step {steps[0]}; steps that differ: {', '.join(map(str, steps))}")
        for each in differences:
            print(f"{f'step {each.step}, ' if each.step else ''}{printable(each.what)}:")
            for sign, value in (("-", each.a), ("+", each.b)):
                for line in (value if value is not None else "(none)").split("\n"):
                    print(f"  {sign} {printable(line)}")
    raise typer.Exit(1 if differences else 0)


@trace.command()
def html(
    name: NameArgument,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file to write. Default: standard output.")
    ] = None,
) -> None:
    """Write a run as one self-contained HTML page."""
    text = page(load(store.find(name)))
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{output} can't be written: {error.strerror}") from error


@trace.command()
def replay(
    name: NameArgument,
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Count the prompts' tokens with this model.")
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option("-T", "--tool", help="Today's tools, as for run. May be repeated.")
    ] = None,
    docs: Annotated[Path | None, typer.Option(help="Folder for search and lookup.")] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Really call the tools given with -T, effects and all.")
    ] = False,
    as_document: JsonOption = False,
) -> None:
    """Run today's loop on the recorded model outputs and tool results.

    Exit code 0: everything came as recorded; 1: something differs.
    """
    tools = None if tool is None else load_tools(tool, docs)
    recorded = load(store.find(name))
    endpoint = None if model is None else open_endpoint(model, recorded.started.setup.get("n_ctx"))
    try:
        result = replayed(recorded, tools, endpoint, execute)
    finally:
        if endpoint is not None:
            endpoint.close()
    if as_document:
        print_json(dataclasses.asdict(result))
    elif result.difference:
        print(printable(f"step {result.step} differs. {result.difference}"))
    else:
        print(f"the same: {result.events} events")
    raise typer.Exit(1 if result.difference else 0)


@trace.command()
def path(name: Annotated[str | None, typer.Argument(metavar="TRACE")] = None) -> None:
    """Print where a trace lies; without a name, the folder of traces."""
    print(store.folder() if name is None else store.find(name))


@trace.command()
def prune(
    keep: Annotated[int | None, typer.Option(min=0, help="Keep so many, the newest.")] = None,
    days: Annotated[float | None, typer.Option(min=0, help="Keep those of so many days.")] = None,
    as_document: JsonOption = False,
) -> None:
    """Delete old traces from the user's state folder."""
    if keep is None and days is None:
        raise UsageError("nothing says which traces to delete", "Give --keep N, --days D, or both.")
    gone = [str(each) for each in store.prune(keep, days)]
    if as_document:
        print_json(gone)
    else:
        print(f"{len(gone)} deleted")

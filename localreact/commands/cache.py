"""`localreact cache`: the evaluated openings kept between processes. All of them may go at any time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from localreact.decoding import prefixes
from localreact.errors import UsageError
from localreact.terminal import print_json, printable

cache = typer.Typer(
    help="Evaluated system prompts, kept so that the next run starts at once. Safe to delete.",
    no_args_is_help=True,
)


@cache.command()
def path() -> None:
    """Print the folder."""
    print(_folder())


@cache.command("list")
def list_entries(
    as_document: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List what is kept, the latest used first."""
    where = _folder()
    entries = prefixes.entries(where)
    if as_document:
        listed = [
            {"file": each.path.name, "model": each.model, "tokens": each.tokens, "bytes": each.bytes}
            for each in entries
        ]
        print_json({"folder": str(where), "entries": listed})
        return
    for each in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used))
        print(f"{each.tokens:6} tokens  {each.bytes / 2**20:6.1f} MiB  {used}  {printable(each.model)}")
    print(f"{len(entries)} kept, {sum(each.bytes for each in entries) / 2**20:.1f} MiB")


@cache.command()
def clear() -> None:
    """Remove everything that is kept."""
    where = _folder()
    try:
        removed = prefixes.clear(where)
    except OSError as error:
        raise UsageError(f"{error.filename or where} can't be removed: {error.strerror}") from error
    print(f"{removed} removed")


def _folder() -> Path:
    where = prefixes.folder()
    if where is None:
        raise UsageError("nothing is kept: LOCALREACT_CACHE is empty", "Unset it, or name a folder.")
    return where

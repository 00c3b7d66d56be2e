"""What outlines' indices cost: whole strings against counted slots, from disk against built anew.

    python benchmarks/outlines_slots.py [-m MODEL]

Builds the index of each regex over the model's vocabulary, and writes and reads it as a pickle.
"""

from __future__ import annotations

import argparse
import pickle
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from outlines_core import Index, Vocabulary
from rich.console import Console
from rich.table import Table

from localreact.decoding.model import Model
from localreact.endpoints.cards import cards
from localreact.grammar import numbers
from localreact.grammar.characters import STRING_CHARACTER
from localreact.grammar.formats import FORMATS
from localreact.grammar.patterns import parse
from localreact.grammar.regexes import regex_of

CHARACTER = f"(?:{regex_of(STRING_CHARACTER)})"
REGEXES = {
    "string, uncounted (a slot of ours)": f'{CHARACTER}*(?:", ")?',
    "line, uncounted (a slot of ours)": r"[^\x00-\x1f\x7f:：]*",
    "number": regex_of(numbers.NUMBER),
    "date": regex_of(parse(f"^(?:{FORMATS['date']})$")),
    "date-time": regex_of(parse(f"^(?:{FORMATS['date-time']})$")),
    "string of up to 20 characters": f'{CHARACTER}{{0,20}}"',
}
T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path)
    vocab = Model(parser.parse_args().model or cards()["smollm2"].path()).vocab
    ids: dict[bytes, list[int]] = {}
    for token, piece in enumerate(vocab.pieces):
        if piece and token not in vocab.markers:
            ids.setdefault(piece, []).append(token)
    vocabulary = Vocabulary(vocab.size, ids)
    table = Table("regex", "build ms", "states", "from a pickle ms", "pickle MB", "peak memory MB, so far")
    for name, regex in REGEXES.items():
        build, index = timed(lambda regex=regex: Index(regex, vocabulary))  # type: ignore[misc]
        pickled = pickle.dumps(index)
        load, _ = timed(lambda pickled=pickled: pickle.loads(pickled))  # type: ignore[misc]
        table.add_row(
            name,
            f"{1000 * build:.0f}",
            str(len(index.get_transitions())),
            f"{1000 * load:.1f}",
            f"{len(pickled) / 1e6:.2f}",
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

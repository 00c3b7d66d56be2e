"""Do logits depend on how a prompt was split? With flash attention on and off, on this machine.

    python benchmarks/flash_attention.py [-m MODEL]

Evaluates the same tokens split in several ways and prints the largest difference of the last logits from
those of the unsplit prompt, then prompt and generation speed (pp, tg) as medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from localreact.decoding.context import Context, Logits, Part
from localreact.decoding.model import Model
from localreact.decoding.threads import default_threads
from localreact.endpoints.cards import cards
from localreact.types import Segment

TOKENS = 600
SPLITS = {"at 589": [589], "at 40": [40], "last 40 one by one": list(range(560, 600))}


def evaluate(context: Context, ids: Sequence[int], splits: Sequence[int]) -> Logits:
    context.cut(0, 0)
    logits: Logits = np.zeros(0, np.float32)
    for start, end in zip([0, *splits], [*splits, len(ids)], strict=True):
        for at in range(start, end, context.n_batch):
            logits = decode(context, ids[at : min(end, at + context.n_batch)], at)
    return np.array(logits, np.float32)


def decode(context: Context, ids: Sequence[int], start: int) -> Logits:
    logits = context.decode([Part(0, ids, start, wanted=True)])
    assert logits is not None
    return logits[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path)
    model = Model(parser.parse_args().model or cards()["smollm2"].path())
    text = (Path(__file__).parent.parent / "LICENSE").read_text("utf-8")
    ids = model.vocab.encode([Segment(text)])[:TOKENS]
    contexts = {
        name: Context(model, n_ctx=1024, n_threads=default_threads(), flash_attention=on)
        for name, on in (("off", False), ("on", True))
    }
    table = Table("flash attention", *(f"split {name}" for name in SPLITS), "pp tokens/s", "tg tokens/s")
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in contexts}
    for _ in range(6):
        for name, context in contexts.items():
            started = time.perf_counter()
            evaluate(context, ids, [])
            read = time.perf_counter()
            for at in range(len(ids), len(ids) + 60):
                decode(context, [ids[0]], at)
            speeds[name].append((len(ids) / (read - started), 60 / (time.perf_counter() - read)))
    for name, context in contexts.items():
        whole = evaluate(context, ids, [])
        off_by = [f"{np.abs(evaluate(context, ids, split) - whole).max():.3g}" for split in SPLITS.values()]
        pp, tg = (statistics.median(each) for each in zip(*speeds[name], strict=True))
        table.add_row(name, *off_by, f"{pp:.0f}", f"{tg:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()

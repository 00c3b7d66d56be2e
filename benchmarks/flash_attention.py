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

from localreact.decoding.session import Logits, Model, Session
from localreact.decoding.threads import default_threads
from localreact.endpoints.cards import cards
from localreact.types import Segment

TOKENS = 600
SPLITS = {"at 589": [589], "at 40": [40], "last 40 one by one": list(range(560, 600))}


def evaluate(session: Session, ids: Sequence[int], splits: Sequence[int]) -> Logits:
    session.rewind_to([-1])  # shares nothing: empties the memory
    logits: Logits = np.zeros(0, np.float32)
    for start, end in zip([0, *splits], [*splits, len(ids)], strict=True):
        logits = session.extend(ids[start:end])
    return np.array(logits, np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path)
    model = Model(parser.parse_args().model or cards()["smollm2"].path())
    text = (Path(__file__).parent.parent / "LICENSE").read_text("utf-8")
    ids = model.vocab.encode([Segment(text)])[:TOKENS]
    sessions = {
        name: Session(model, n_ctx=1024, n_threads=default_threads(), flash_attention=on)
        for name, on in (("off", False), ("on", True))
    }
    table = Table("flash attention", *(f"split {name}" for name in SPLITS), "pp tokens/s", "tg tokens/s")
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in sessions}
    for _ in range(6):
        for name, session in sessions.items():
            started = time.perf_counter()
            evaluate(session, ids, [])
            read = time.perf_counter()
            for _ in range(60):
                session.extend([ids[0]])
            speeds[name].append((len(ids) / (read - started), 60 / (time.perf_counter() - read)))
    for name, session in sessions.items():
        whole = evaluate(session, ids, [])
        off_by = [f"{np.abs(evaluate(session, ids, split) - whole).max():.3g}" for split in SPLITS.values()]
        pp, tg = (statistics.median(each) for each in zip(*speeds[name], strict=True))
        table.add_row(name, *off_by, f"{pp:.0f}", f"{tg:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()

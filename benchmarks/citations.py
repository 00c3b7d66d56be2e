"""What citations cost: compiling the grammar of a turn that cites, and its masks inside a quote.

    python benchmarks/citations.py [-m MODEL] [-o results/citations-MODEL.json]

Observations of 1,000 to 50,000 characters, of made-up English words and of random Chinese characters. Each
grammar is new to the engine; masks are taken at every token of a quote of 150 characters, as they are where
no candidate is legal. Medians of rounds with different texts.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from localreact.decoding.model import Model
from localreact.decoding.vocab import Vocab
from localreact.endpoints.cards import cards
from localreact.engines.llguidance import LLGuidanceEngine
from localreact.protocols import JsonProtocol
from localreact.types import Evidence, Finish, Segment, Source, TurnSpec

SIZES = (1_000, 10_000, 50_000)
ROUNDS = 5
QUOTE = 150


def made_up(kind: str, size: int, chance: random.Random) -> str:
    if kind == "Chinese":
        text = "".join(chr(chance.randrange(0x4E00, 0x5E00)) for _ in range(size))
    else:
        syllables = ["ba", "den", "fi", "gor", "lu", "mer", "nos", "pi", "qua", "ris", "to", "ven"]
        words = ["".join(chance.choices(syllables, k=chance.randrange(1, 4))) for _ in range(3_000)]
        text = " ".join(chance.choices(words, k=size))
    return "".join(c if at % 90 else '"\n\\'[at % 3] for at, c in enumerate(text[:size], 1))


def masks(engine: LLGuidanceEngine, vocab: Vocab, text: str, chance: random.Random) -> Iterator[float]:
    """First the seconds of compiling, then of each mask inside a quote."""
    protocol = JsonProtocol()
    start = chance.randrange(len(text) - QUOTE)
    finish = Finish("I know it.", answer="x", evidence=(Evidence(1, text[start : start + QUOTE]),))
    head, mark, rest = protocol.write(finish).partition('"quote": "')
    grammar = protocol.grammar(TurnSpec(sources=(Source(1, text),), thought_min=1), "lark")
    before = time.perf_counter()
    matcher = engine.start(grammar)
    yield time.perf_counter() - before
    matcher.accept(vocab.encode([Segment(head + mark)]))
    for token in vocab.encode([Segment(rest.partition('"}')[0])]):
        before = time.perf_counter()
        legal = matcher.mask()
        yield time.perf_counter() - before
        assert legal[token]
        matcher.accept([token])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    model = Model(options.model or cards()["smollm2"].path())
    engine = LLGuidanceEngine.for_vocab(model.vocab)
    table = Table("text", "characters", "compile ms", "mask ms, median", "mean", "most")
    rows = []
    for kind in ("English", "Chinese"):
        for size in SIZES:
            chance, compiled, inside = random.Random(size), list[float](), list[float]()
            for _ in range(ROUNDS):
                first, *others = masks(engine, model.vocab, made_up(kind, size, chance), chance)
                compiled.append(1000 * first)
                inside += [1000 * each for each in others]
            row = {
                "text": kind,
                "characters": size,
                "compile_ms": round(statistics.median(compiled), 1),
                "mask_ms_median": round(statistics.median(inside), 3),
                "mask_ms_mean": round(statistics.mean(inside), 3),
                "mask_ms_most": round(max(inside), 2),
            }
            rows.append(row)
            table.add_row(*map(str, row.values()))
    Console().print(table)
    if options.out:
        document = {"vocabulary": model.vocab.size, "rounds": ROUNDS, "quote": QUOTE, "rows": rows}
        options.out.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()

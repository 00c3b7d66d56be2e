"""Which share of turns do neighbours in the batch change? llama.cpp's logits depend a little on them.

    python benchmarks/neighbours.py [-m MODEL] [--runs N] [--questions N]

Every question is run greedily, alone and with others at the same time. Printed: the share of first turns
(their prompts are the same) and of whole runs whose text differs from the one alone, runs a second, and the
same for a second round alone, with which the first ought to agree.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from localreact.agent import Agent
from localreact.decoding.threads import contended
from localreact.endpoints.resolve import DEFAULT_MODEL
from localreact.tools.builtin import load_tools
from localreact.trace.events import TurnCompleted

SUITE = Path(__file__).parent / "suites" / "first_light.jsonl"


def turns(agent: Agent, question: str) -> list[str]:
    return [event.completion.text for event in agent.stream(question) if isinstance(event, TurnCompleted)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default=DEFAULT_MODEL)
    parser.add_argument("--runs", type=int, nargs="+", default=[2, 8], help="runs at a time")
    parser.add_argument("--questions", type=int, default=24)
    arguments = parser.parse_args()
    console = Console()
    if contended():
        console.print("others are using this machine: the runs a second mean nothing", style="yellow")
    questions = [json.loads(line)["question"] for line in SUITE.read_text("utf-8").splitlines()]
    questions = questions[: arguments.questions]
    table = Table("runs at a time", "first turns changed", "runs changed", "runs a second")
    with Agent(arguments.model, load_tools(["calculator", "search"], None)) as agent:
        turns(agent, questions[0])  # so that the opening is in memory for all
        alone: list[list[str]] = []
        for at_once in (1, 1, *arguments.runs):
            started = time.perf_counter()
            with ThreadPoolExecutor(at_once) as pool:
                done = list(pool.map(lambda question: turns(agent, question), questions))
            speed = len(questions) / (time.perf_counter() - started)
            alone = alone or done
            first = sum(a[0] != b[0] for a, b in zip(alone, done, strict=True))
            whole = sum(a != b for a, b in zip(alone, done, strict=True))
            counts = (f"{changed} of {len(questions)}" for changed in (first, whole))
            table.add_row(str(at_once), *counts, f"{speed:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()

"""One llama-server with all threads beside two with half of them each: the same questions, several at a time.

    LOCALREACT_LLAMA_SERVER=…/llama-server python benchmarks/replicas.py --json FILE

All servers run from the beginning to the end; those that have nothing to do take no time. The two arms take
turns, and begin in turn: a round is one pass of all questions through each. As many runs as there are slots
go on at a time, so that a server can decode them in one batch; both arms have as many slots, and as much
context, together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from servers import CONTEXT, MAX_TOKENS, SUITE, llama_server

from localreact import Agent, Run
from localreact.bench.machine import machine
from localreact.decoding.threads import default_threads
from localreact.tools.builtin import load_tools

SERVERS = (1, 2)


def one_pass(agent: Agent, questions: list[str], at_once: int) -> tuple[dict[str, Any], list[Run]]:
    started = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        runs = list(pool.map(agent.run, questions))
    seconds = time.monotonic() - started
    usages = [step.usage for run in runs for step in run.steps]
    row = {
        "seconds": round(seconds, 2),
        "runs_per_minute": round(60 * len(runs) / seconds, 1),
        "generated": sum(each.generated for each in usages),
        "tokens_per_second": round(sum(each.generated for each in usages) / seconds, 1),
        "evaluated": sum(each.prompt - each.reused for each in usages),
        "statuses": dict(Counter(run.status for run in runs)),
    }
    return row, runs


def measure(questions: list[str], rounds: int, at_once: int) -> dict[str, Any]:
    tools, threads = load_tools(["calculator", "search"], None), default_threads()
    passes: list[dict[str, Any]] = []
    answers: dict[int, list[str | None]] = {}
    same = 0
    with ExitStack() as stack:
        agents = {}
        for count in SERVERS:
            each = (max(1, threads // count), max(1, at_once // count))
            urls = [stack.enter_context(llama_server(*each)) for _ in range(count)]
            address = "llama-server:" + ",".join(urls)
            agents[count] = stack.enter_context(Agent(address, tools, max_tokens=MAX_TOKENS))
            one_pass(agents[count], questions[: 2 * at_once], at_once)  # to have everything in memory
        for number in range(rounds):
            for count in SERVERS if number % 2 == 0 else reversed(SERVERS):
                row, runs = one_pass(agents[count], questions, at_once)
                answers[count] = [run.answer for run in runs]
                passes.append({"servers": count, "round": number + 1, **row})
                print(f"round {number + 1}, servers: {count}: {row['seconds']} s", file=sys.stderr)
            same += sum(a == b for a, b in zip(answers[1], answers[2], strict=True))
        fingerprint = agents[1].endpoint.fingerprint
    return {
        "machine": machine(),
        "server": fingerprint,
        "questions": len(questions),
        "rounds": rounds,
        "at_once": at_once,
        "threads": threads,
        "context": CONTEXT,
        "arms": [arm(count, threads, at_once, passes) for count in SERVERS],
        "two_over_one": two_over_one(passes),
        "same_answers": f"{same} of {rounds * len(questions)}",
        "passes": passes,
    }


def arm(count: int, threads: int, at_once: int, passes: list[dict[str, Any]]) -> dict[str, Any]:
    own = [row for row in passes if row["servers"] == count]
    return {
        "servers": count,
        "threads_each": max(1, threads // count),
        "slots_each": max(1, at_once // count),
        "runs_per_minute": statistics.median(row["runs_per_minute"] for row in own),
        "tokens_per_second": statistics.median(row["tokens_per_second"] for row in own),
        "endpoint_errors": sum(row["statuses"].get("endpoint_error", 0) for row in own),
    }


def two_over_one(passes: list[dict[str, Any]]) -> dict[str, float]:
    """Runs a minute over two servers, as a multiple of those over one; round by round."""
    ratios = []
    for number in sorted({row["round"] for row in passes}):
        speed = {row["servers"]: row["runs_per_minute"] for row in passes if row["round"] == number}
        ratios.append(speed[2] / speed[1])
    return {
        "median": round(statistics.median(ratios), 2),
        "least": round(min(ratios), 2),
        "most": round(max(ratios), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=4, help="runs at a time, and slots together")
    parser.add_argument("--json", type=Path, help="write all results here")
    options = parser.parse_args()
    tasks = [json.loads(line) for line in SUITE.read_text("utf-8").splitlines()]
    result = measure(
        [task["question"] for task in tasks][: options.questions], options.rounds, options.at_once
    )
    table = Table(*result["arms"][0])
    for row in result["arms"]:
        table.add_row(*map(str, row.values()))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print(f"two over one: {result['two_over_one']}; same answers: {result['same_answers']}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()

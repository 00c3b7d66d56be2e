"""The same model file in process and over llama-server.

    LOCALREACT_LLAMA_SERVER=…/llama-server python benchmarks/servers.py [--json FILE]

Runs 20 questions both ways, greedy, and shows every question whose turns differ: in process under
llguidance, where forced text is evaluated in batches, and under llama.cpp's own grammar, token by token as
on the server.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localreact import Agent, Run
from localreact.bench.others import start_llama_server
from localreact.decoding.threads import default_threads
from localreact.endpoints.cards import cards
from localreact.tools.builtin import load_tools

SUITE = Path(__file__).parent / "suites" / "first_light.jsonl"
QUESTIONS = 20
MAX_TOKENS = 600
CONTEXT = 4096


@contextmanager
def llama_server(threads: int, slots: int) -> Iterator[str]:
    """A server on a free port; gives its URL."""
    binary = os.environ.get("LOCALREACT_LLAMA_SERVER") or shutil.which("llama-server")
    if not binary:
        raise SystemExit("no llama-server: name the binary in LOCALREACT_LLAMA_SERVER")
    # No prompt is kept beside the slots: a second pass over the same questions would have nothing to read.
    options = ("-fa", "off", "--cache-ram", "0")
    process, url = start_llama_server(binary, cards()["smollm2"].path(), CONTEXT, threads, slots, *options)
    try:
        yield url
    finally:
        process.terminate()
        process.wait()


def turns(run: Run) -> list[dict[str, Any]]:
    return [asdict(step.turn) if step.turn else {"problem": step.problem} for step in run.steps]


def same(questions: list[str]) -> dict[str, Any]:
    tools = load_tools(["calculator", "search"], None)
    here = {}
    for engine in ("llguidance", "gbnf"):
        with Agent("smollm2", tools, max_tokens=MAX_TOKENS, engine=engine) as agent:
            here[engine] = [agent.run(question) for question in questions]
    with (
        llama_server(default_threads(), 1) as url,
        Agent(f"llama-server:{url}", tools, max_tokens=MAX_TOKENS) as agent,
    ):
        level = agent.level
        there = [agent.run(question) for question in questions]
    results = {engine: compare(questions, runs, there) for engine, runs in here.items()}
    return {"level": level, "questions": len(questions), "engines": results}


def compare(questions: list[str], here: list[Run], there: list[Run]) -> dict[str, Any]:
    rows = []
    for question, one, other in zip(questions, here, there, strict=True):
        pairs = zip(turns(one), turns(other), strict=False)
        first = next((number for number, (a, b) in enumerate(pairs, 1) if a != b), None)
        if first is None and len(one.steps) != len(other.steps):
            first = min(len(one.steps), len(other.steps)) + 1
        row: dict[str, Any] = {"question": question, "same": first is None}
        if first is not None:
            row |= {"step": first, "in_process": turns(one)[first - 1 :], "server": turns(other)[first - 1 :]}
        rows.append(row)
    return {"same": sum(row["same"] for row in rows), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all results here")
    options = parser.parse_args()
    tasks = [json.loads(line) for line in SUITE.read_text("utf-8").splitlines()]
    questions = [task["question"] for task in tasks][:QUESTIONS]
    result = same(questions)
    for engine, compared in result["engines"].items():
        print(f"{engine}: {compared['same']} of {result['questions']} runs have the same turns")
        for row in compared["rows"]:
            if not row["same"]:
                print(f"\n{row['question']} (from step {row['step']})")
                print(f"  in process: {row['in_process']}\n  server:     {row['server']}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()

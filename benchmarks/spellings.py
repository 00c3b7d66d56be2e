"""Which spelling of the json protocol, and how many examples, does a model do best with?

    python benchmarks/spellings.py [-m MODEL] [--split choose] [--json FILE]

Runs the questions of `suites/first_light.jsonl` (two tools, greedy, evidence gate on) through every
arm, and counts right first tools and right answers. An answer is right when it contains an expected
string (commas inside numbers ignored) and is at most 120 characters: a copied page is no answer.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from localreact import Agent
from localreact.endpoints.resolve import open_endpoint
from localreact.tools.builtin import load_tools
from localreact.types import ToolCall

SUITE = Path(__file__).parent / "suites" / "first_light.jsonl"

ARMS: dict[str, dict[str, Any]] = {
    "finish as tool, 2 examples a tool": {"spelling": {"finish": "tool"}, "examples": 2},
    "finish as tool, 1 example a tool": {"spelling": {"finish": "tool"}, "examples": 1},
    "finish as tool, no example": {"spelling": {"finish": "tool"}, "examples": 0},
    "finish as type, 2 examples a tool": {"spelling": {}, "examples": 2},
    "finish as type, 1 example a tool": {"spelling": {}, "examples": 1},
    "type first, 2 examples a tool": {"spelling": {"first": "type"}, "examples": 2},
    "compact, 2 examples a tool": {"spelling": {"finish": "tool", "compact": True}, "examples": 2},
    "decision_summary, 2 examples a tool": {
        "spelling": {"finish": "tool", "thought": "decision_summary"},
        "examples": 2,
    },
}
MAX_TOKENS = 600  # of a run: enough for four turns; a model that rambles isn't waited for


def is_right(answer: str | None, expected: list[str]) -> bool:
    if answer is None or len(answer) > 120:
        return False
    text = re.sub(r"(?<=\d),(?=\d{3})", "", answer)
    return any(re.search(rf"(?<![\w.]){re.escape(each)}(?![\w]|\.\d)", text) for each in expected)


def run_arm(agent: Agent, questions: list[dict[str, Any]], name: str) -> dict[str, Any]:
    rows = []
    for task in track(questions, description=name, transient=True):
        run = agent.run(task["question"])
        first = run.steps[0].turn if run.steps else None
        rows.append(
            {
                "id": task["id"],
                "status": run.status,
                "answer": run.answer,
                "right": is_right(run.answer, task["answers"]),
                "first_tool": first.tool if isinstance(first, ToolCall) else None,
                "right_tool": isinstance(first, ToolCall) and first.tool == task["tool"],
                "steps": len(run.steps),
                "tokens": run.usage.generated,
            }
        )
    return {
        "arm": name,
        "questions": len(rows),
        "right": sum(row["right"] for row in rows),
        "right_tool": sum(row["right_tool"] for row in rows),
        "tokens": sum(row["tokens"] for row in rows),
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--split", default="choose", choices=("choose", "held_out"))
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="only this arm (may be repeated)")
    options = parser.parse_args()
    questions = [json.loads(line) for line in SUITE.read_text("utf-8").splitlines()]
    questions = [task for task in questions if task["split"] == options.split]
    endpoint = open_endpoint(options.model)
    tools = load_tools(["calculator", "search"], None)
    table = Table("arm", "right answers", "right first tool", "tokens")
    results = []
    for name in options.arm or ARMS:
        result = run_arm(Agent(endpoint, tools, max_tokens=MAX_TOKENS, **ARMS[name]), questions, name)
        results.append(result)
        print(f"{name}: {result['right']} right, {result['right_tool']} right first tools", flush=True)
        total = result["questions"]
        table.add_row(
            name, f"{result['right']}/{total}", f"{result['right_tool']}/{total}", str(result["tokens"])
        )
    Console().print(table)
    if options.json:
        document = {"model": endpoint.fingerprint, "split": options.split, "arms": results}
        options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()

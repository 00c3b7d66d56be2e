"""Many clients at a time over one `localreact serve`, one request in five abandoned in the middle.

    python benchmarks/load.py --minutes 10 --json FILE
    python benchmarks/load.py --minutes 3 --deterministic --json FILE

Every request is greedy, and was answered once before, with the server to itself: so it is known which replies
neighbours changed. The queue is shorter than there are clients, for 429 to happen.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from localreact.bench.machine import machine

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": "string", "maxLength": 60}},
                "required": [argument],
            },
        },
    }
    for name, description, argument in (
        ("calculator", "Computes arithmetic.", "expression"),
        ("search", "Finds facts in the documents.", "query"),
    )
]
QUESTIONS = (
    "What is 3*45+2*12?",
    "Who designed the Tessel Bridge?",
    "How much is 17 percent of 2,350?",
    "What is the capital of Velmark?",
)
LINES_READ = 4
"""Of a stream that is abandoned."""

SERVER_ERRORS = 'localreact_errors_total{kind="server"}'


def requests() -> list[dict[str, Any]]:
    """Calls that are required, calls that are left to the model, plain text, and structured answers."""
    rgb = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green", "blue"]}},
        "required": ["colour"],
    }
    shapes: list[dict[str, Any]] = [
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS},
        {},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": rgb}}},
    ]
    return [
        {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 96, **shape}
        for question in QUESTIONS
        for shape in shapes
    ]


@dataclass
class Tally:
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    whole: int = 0
    changed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Client:
    http: httpx2.Client

    def whole(self, body: dict[str, Any]) -> tuple[str, Any]:
        """Status, and what was replied."""
        answer = self.http.post("/v1/chat/completions", json=body)
        if answer.status_code != 200:
            return str(answer.status_code), None
        message = answer.json()["choices"][0]["message"]
        return "200", [message["content"], [call["function"] for call in message.get("tool_calls") or ()]]

    def abandoned(self, body: dict[str, Any]) -> str:
        with self.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
            if answer.status_code != 200:
                return str(answer.status_code)
            for number, _ in enumerate(answer.iter_lines()):
                if number == LINES_READ:
                    break
        return "abandoned"


def go_on(url: str, number: int, until: float, alone: list[Any], tally: Tally) -> None:
    draw = random.Random(number)
    bodies = requests()
    with httpx2.Client(base_url=url, timeout=120) as http:
        client = Client(http)
        while time.monotonic() < until:
            which = draw.randrange(len(bodies))
            started, reply = time.monotonic(), None
            try:
                if draw.random() < 0.2:
                    status = client.abandoned(bodies[which])
                else:
                    status, reply = client.whole(bodies[which])
            except httpx2.HTTPError as error:
                status = type(error).__name__
            seconds = time.monotonic() - started
            with tally.lock:
                tally.statuses[status] += 1
                if status == "200":
                    tally.seconds.append(seconds)
                    tally.whole += 1
                    tally.changed += reply != alone[which]
            if status == "429":
                time.sleep(0.5)


@contextmanager
def server(options: list[str]) -> Iterator[tuple[str, int]]:
    """Its URL and process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "localreact", "serve", "--port", str(port), "-q", *options]
    process = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                if httpx2.get(url + "/health", timeout=5).status_code == 200:
                    break
            except httpx2.HTTPError:
                if process.poll() is not None:
                    raise SystemExit(f"the server ended with {process.returncode}") from None
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(int(next(each for each in lines if each.startswith("VmRSS")).split()[1]) / 1024, 1)


def gauges(url: str) -> dict[str, float]:
    lines = httpx2.get(url + "/metrics").text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def measure(clients: int, minutes: float, options: list[str]) -> dict[str, Any]:
    with server(["--queue", str(clients // 4), *options]) as (url, pid):
        with httpx2.Client(base_url=url, timeout=120) as http:
            alone = [Client(http).whole(body)[1] for body in requests()]
            before = gauges(url).get(SERVER_ERRORS, 0.0)  # health says 503 while the model is being loaded
            again = [Client(http).whole(body)[1] for body in requests()]
        tally, started = Tally(), time.monotonic()
        until = started + 60 * minutes
        threads = [
            threading.Thread(target=go_on, args=(url, number, until, alone, tally))
            for number in range(clients)
        ]
        for thread in threads:
            thread.start()
        memory = []
        while time.monotonic() < until:
            time.sleep(min(60 * minutes / 10, max(0.1, until - time.monotonic())))
            memory.append(resident_mib(pid))
            print(f"{memory[-1]} MiB, {dict(tally.statuses)}", file=sys.stderr)
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - started
        time.sleep(2)  # for what was abandoned last
        after = gauges(url)
        with httpx2.Client(base_url=url, timeout=120) as http:
            at_last = [Client(http).whole(body)[1] for body in requests()]
    cuts = statistics.quantiles(tally.seconds, n=20)
    return {
        "machine": machine(),
        "clients": clients,
        "minutes": minutes,
        "options": options,
        "statuses": dict(tally.statuses.most_common()),
        "replies_per_minute": round(60 * tally.whole / seconds, 1),
        "p50_s": round(statistics.median(tally.seconds), 2),
        "p95_s": round(cuts[18], 2),
        "changed_by_neighbours": f"{tally.changed} of {tally.whole}",
        "changed_alone": f"{sum(a != b for a, b in zip(alone, again, strict=True))} of {len(alone)}",
        "changed_after": f"{sum(a != b for a, b in zip(alone, at_last, strict=True))} of {len(alone)}",
        "resident_mib": memory,
        "left_behind": {name: after[f"localreact_{name}"] for name in ("active", "waiting")},
        "server_errors": after.get(SERVER_ERRORS, 0.0) - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--json", type=Path, help="write all results here")
    arguments = parser.parse_args()
    options = ["-m", arguments.model, *(["--deterministic"] if arguments.deterministic else [])]
    result = measure(arguments.clients, arguments.minutes, options)
    print(json.dumps({key: value for key, value in result.items() if key != "machine"}, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

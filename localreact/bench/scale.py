"""`localreact bench scale`: one thing grows, everything else stays."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median
from typing import Any

from llguidance import LLTokenizer, TokenizerWrapper
from rich.table import Table

from localreact.agent import Agent
from localreact.bench.machine import machine
from localreact.bench.workload import QUESTIONS
from localreact.decoding.context import Context, Part
from localreact.decoding.prefixes import PrefixStore
from localreact.decoding.threads import contended
from localreact.endpoints.base import whole
from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.resolve import open_endpoint
from localreact.engines.llguidance import LLGuidanceEngine
from localreact.errors import UsageError
from localreact.protocols import protocol
from localreact.tools.builtin import load_tools
from localreact.types import Completion, Finish, Limits, Prompt, Sampling, Segment, ToolSpec, TurnSpec

REPEATS = 5
TURN = 300
"""Tokens at most."""
RUNS = 16
"""Of an agent, for every number of them at a time: two waves of the most."""


def scale_up(model: str, axis: str, n_threads: int | None = None) -> dict[str, Any]:
    """Measure an axis; the document has a list of points, each with its size and what it cost.

    Raises:
        UsageError: not a model in process.
    """
    endpoint = open_endpoint(model, n_threads=n_threads)
    try:
        if not isinstance(endpoint, LlamaEndpoint):
            raise UsageError(f"{model} isn't a model in process")
        return {
            "benchmark": "scale",
            "axis": axis,
            "model": endpoint.name,
            "contended": contended(),
            "points": AXES[axis](endpoint),
            "machine": machine(),
        }
    finally:
        endpoint.close()


def scale_table(document: Mapping[str, Any]) -> Table:
    points = document["points"]
    table = Table(title=f"{document['model']}: {document['axis']}")
    for name in points[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for point in points:
        table.add_row(
            *(f"{value:.3g}" if isinstance(value, float) else str(value) for value in point.values())
        )
    return table


def _tools(endpoint: LlamaEndpoint) -> list[dict[str, Any]]:
    points = []
    for n in (1, 3, 10, 30, 100, 200):
        tools = tuple(
            ToolSpec(
                f"look_up_{i}",
                "Look something up.",
                {
                    "type": "object",
                    "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
                    "required": ["query"],
                },
            )
            for i in range(n)
        )
        points.append({"tools": n, **_cost(endpoint, TurnSpec(tools=tools, answer=True))})
    return points


def _depth(endpoint: LlamaEndpoint) -> list[dict[str, Any]]:
    points = []
    schema: dict[str, Any] = {"type": "string"}
    for depth in range(1, 17):
        schema = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
        if depth in (1, 2, 4, 8, 16):
            tool = ToolSpec("store", "Store something.", schema)
            points.append({"depth": depth, **_cost(endpoint, TurnSpec(tools=(tool,), answer=False))})
    return points


def _observation(endpoint: LlamaEndpoint) -> list[dict[str, Any]]:
    spec = TurnSpec(answer=True)
    words = "The keeper wrote down the wind, the waves and the ships that passed. "
    points = []
    for n in (100, 400, 1600, 6400):
        points.append({"characters": n, **_cost(endpoint, spec, (words * (n // len(words) + 1))[:n])})
    return points


def _parallel(endpoint: LlamaEndpoint) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = []
    # Some models never end a run by themselves, or an answer: one of 2,000 tokens would be all that is seen.
    tools = load_tools(["calculator", "search"], None)
    with Agent(endpoint, tools, max_steps=3, max_tokens=TURN) as agent:
        agent.run(QUESTIONS[0])  # so that the opening is in memory for all
        for at_once in (1, 2, 4, 8):
            started = time.perf_counter()
            with ThreadPoolExecutor(at_once) as pool:
                runs = list(pool.map(agent.run, QUESTIONS[:RUNS]))
            seconds = time.perf_counter() - started
            tokens = sum(run.usage.generated for run in runs)
            points.append(
                {
                    "runs_at_a_time": at_once,
                    "runs_per_s": len(runs) / seconds,
                    "tokens_per_s": tokens / seconds,
                }
            )
    for point in points:
        point["times_one"] = point["runs_per_s"] / points[0]["runs_per_s"]
    return points


def _steps(endpoint: LlamaEndpoint) -> list[dict[str, Any]]:
    """A run that goes on and on: what a step evaluates is what is new since the last one."""
    spec = TurnSpec(answer=True, thought_max=80, answer_max=80)
    said = [Segment("The keeper wrote down wind, waves and ships. " * 20)]
    points = []
    for step in range(1, 33):
        if len(endpoint.encode(Prompt(tuple(said)))) > endpoint.n_ctx - TURN:
            break
        done = _write(endpoint, Prompt(tuple(said)), spec)
        said += [Segment(done.text, tokens=done.tokens), Segment(f"\nThat was step {step}. What next?\n")]
        if step in (1, 2, 4, 8, 16, 32):
            usage = done.usage
            points.append(
                {
                    "steps": step,
                    "prompt_tokens": usage.prompt,
                    "evaluated_tokens": usage.prompt - usage.reused,
                    "prompt_ms": 1000 * done.timings.prompt_s,
                    "generate_ms_per_token": 1000 * done.timings.generate_s / usage.generated,
                }
            )
    return points


def _vocabulary(endpoint: LlamaEndpoint) -> list[dict[str, Any]]:
    """One turn under the first so many tokens of the model's vocabulary, a mask at every token of it; the
    model itself isn't asked."""
    text = protocol("json").write(Finish("The result says how high it is.", answer="It is 120 metres high."))
    grammar = protocol("json").grammar(TurnSpec(answer=True), "lark")
    pieces = sorted({piece for piece in endpoint.model.vocab.pieces if piece}, key=len)
    points = []
    for n in (1_000, 4_000, 16_000, 64_000, 256_000):
        tokens = _Pieces(pieces[:n])
        engine = LLGuidanceEngine(LLTokenizer(TokenizerWrapper(tokens)))
        engine.start(grammar).mask()
        ids = tokens(text.encode())
        masks, checks = [], []
        for _ in range(REPEATS):
            matcher = engine.start(grammar)
            for token in ids:
                started = time.perf_counter()
                matcher.allows(token)
                checked = time.perf_counter()
                matcher.mask()
                masks.append(time.perf_counter() - checked)
                checks.append(checked - started)
                matcher.accept([token])
        points.append(
            {
                "vocabulary": len(tokens.tokens),
                "mask_ms": 1000 * mean(masks),
                "allows_ms": 1000 * mean(checks),
            }
        )
        if n >= len(pieces):
            break
    return points


class _Pieces:
    """A tokenizer of these pieces and all bytes, which takes the longest that fits."""

    bos_token_id = None

    def __init__(self, pieces: Sequence[bytes]) -> None:
        single = {bytes([n]) for n in range(256)}
        self.tokens = [b"<end>", *sorted(single.union(pieces))]
        self.eos_token_id = 0
        self.special_token_ids = [0]
        self._ids = {piece: n for n, piece in enumerate(self.tokens)}
        self._longest = max(map(len, self.tokens))

    def __call__(self, text: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(text):
            piece = next(p for n in range(self._longest, 0, -1) if (p := text[at : at + n]) in self._ids)
            ids.append(self._ids[piece])
            at += len(piece)
        return ids


def _prefix(endpoint: LlamaEndpoint) -> list[dict[str, Any]]:
    """Evaluating a prompt, against reading and checking what was kept of it and filling memory with it."""
    context = Context(endpoint.model, n_ctx=endpoint.n_ctx, n_threads=endpoint.n_threads)
    ids = endpoint.encode(Prompt((Segment("The keeper wrote down wind, waves and ships. " * 400),)))
    points = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            store = PrefixStore(Path(folder), endpoint.name, context.settings)
            for n in (100, 300, 600, 1200):
                evaluated, restored, size = [], [], 0
                for _ in range(3):
                    context.clear()
                    started = time.perf_counter()
                    for at in range(0, n, context.n_batch):
                        part = ids[at : min(n, at + context.n_batch)]
                        context.decode([Part(0, part, at, at + len(part) == n)])
                    evaluated.append(time.perf_counter() - started)
                    state = context.save(0)
                    size = len(state)
                    store.put(ids[:n], state)
                    context.clear()
                    started = time.perf_counter()
                    kept = store.get(ids[:n])
                    if kept is None or not context.restore(0, kept, n):
                        raise UsageError("llama.cpp couldn't restore what it had saved")
                    restored.append(time.perf_counter() - started)
                point = {"tokens": n, "kept_mib": size / 2**20, "evaluate_ms": 1000 * median(evaluated)}
                point["restore_ms"] = 1000 * median(restored)
                points.append({**point, "share": median(restored) / median(evaluated)})
    finally:
        context.close()
    return points


AXES: dict[str, Callable[[LlamaEndpoint], list[dict[str, Any]]]] = {
    "tools": _tools,
    "depth": _depth,
    "observation": _observation,
    "steps": _steps,
    "parallel": _parallel,
    "vocabulary": _vocabulary,
    "prefix": _prefix,
}


def _cost(endpoint: LlamaEndpoint, spec: TurnSpec, context: str = "") -> dict[str, Any]:
    """The first turn on a fresh grammar, then the typical one after it."""
    prompt = Prompt((Segment(f"{context}\nWhat is the height of the lighthouse at Brindle?\n"),))
    done = [_write(endpoint, prompt, spec) for _ in range(REPEATS + 1)]
    later = done[1:]
    per_token = [each.timings.constraint_s / each.usage.generated for each in later]
    return {
        "first_constraint_ms": 1000 * done[0].timings.constraint_s,
        "constraint_ms_per_token": 1000 * median(per_token),
        "generate_ms": 1000 * median(each.timings.generate_s for each in later),
        "tokens": later[-1].usage.generated,
        "masks": later[-1].usage.masks,
    }


def _write(endpoint: LlamaEndpoint, prompt: Prompt, spec: TurnSpec) -> Completion:
    grammar = protocol("json").grammar(spec, endpoint.languages[0])
    return whole(endpoint.complete(prompt, grammar, Limits(TURN), Sampling()))

"""`localreact bench speed`: the same turns through every arm, interleaved, and what each took."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from localreact.bench import others
from localreact.bench.arms import Arm, Desk, Ours, Sample, Stepped
from localreact.bench.machine import bandwidth, machine, peak_memory
from localreact.bench.statistics import Ratio, ratio
from localreact.bench.workload import Kind, cases
from localreact.decoding import backend
from localreact.decoding.context import Context, Part
from localreact.decoding.threads import contended, default_threads
from localreact.endpoints.llama import LlamaEndpoint, engine_for
from localreact.endpoints.resolve import model_path
from localreact.errors import LocalReactError

OURS = "localreact, llguidance"
FREE = "localreact, free"
STEPPED = Stepped.name


@dataclass(frozen=True)
class Row:
    """An arm over all cases of a workload: medians over the rounds, then sums or medians over the cases.

    `faster_than_stepped` is the time that it takes to step through the turn that our default wrote, token by
    token and without a grammar, divided by this arm's; `to_free` its tokens a second through those of free
    text.
    """

    arm: str
    tokens_per_s: float
    ms_per_turn: float
    first_ms: float
    sampled: float
    forced: float
    masks: float
    model_share: float
    constraint_share: float
    whole: int
    cases: int
    to_free: Ratio | None
    faster_than_stepped: Ratio | None


@dataclass(frozen=True)
class Report:
    """What one run of the benchmark found, for one model and one kind of turn."""

    model: str
    kind: Kind
    rounds: int
    pp: float
    tg: float
    """Tokens a second in llama-bench's sense: reading prompts, and decoding one by one without choosing."""
    roofline_tg: float
    """What the memory's bandwidth would allow: bytes of weights read once a token."""
    peak_memory: int | None
    contended: bool
    rows: tuple[Row, ...]
    left_out: Mapping[str, str]
    """Arms that couldn't be measured, and why."""
    machine: Mapping[str, Any] = field(default_factory=machine)

    def as_json(self) -> dict[str, Any]:
        return {"benchmark": "speed", **asdict(self)}


Progress = Callable[[float], None]
"""Is told how much is done, from 0 to 1."""


def speed(
    model: str,
    kind: Kind,
    questions: int,
    rounds: int,
    engines: Sequence[str],
    n_threads: int | None = None,
    llama_server: str | None = None,
    guidance: str | None = None,
    create_completion: bool = True,
    progress: Progress = lambda done: None,
) -> Report:
    """Measure one model on one kind of turn. `create_completion` under a grammar takes most of the time.
    `guidance` is the interpreter of an environment that has it.

    Raises:
        LocalReactError: the model can't be had, or the main arm fails.
    """
    busy = contended()
    path = model_path(model)
    threads = n_threads or default_threads()
    with ExitStack() as open_things:
        endpoint = open_things.enter_context(closing(LlamaEndpoint(path, n_threads=threads)))
        protocol, workload = cases(endpoint, kind, questions)
        context = Context(endpoint.model, n_ctx=endpoint.n_ctx, n_threads=threads)
        desk = Desk(context, protocol)
        bench, left_out = _arms(desk, path, threads, engines, create_completion)
        if llama_server:
            server = others.LlamaServerProcess(llama_server, path, context.n_ctx, threads)
            open_things.callback(server.close)
            bench.append(others.LlamaServer("llama-server, free", server, protocol, False))
            bench.append(others.LlamaServer("llama-server, grammar", server, protocol, True))
        if guidance:
            process = others.Guidance(guidance, path, context.n_ctx, threads, protocol)
            open_things.callback(process.close)
            bench.append(process)
        times: dict[str, dict[str, list[Sample]]] = {arm.name: {} for arm in bench}
        read_s = read_tokens = 0.0
        for number, case in enumerate(workload):
            read_s += desk.prepare(case)
            read_tokens += len(case.ids) - 1
            for arm in bench:
                if arm.name not in left_out and not arm.once:
                    with _blamed(arm, left_out):
                        arm.write(case)  # warms caches, and sets the text that is stepped through
            for turn in range(rounds):
                order = bench[turn % len(bench) :] + bench[: turn % len(bench)]
                for arm in order:
                    if arm.name not in left_out and not (arm.once and turn):
                        with _blamed(arm, left_out):
                            times[arm.name].setdefault(case.name, []).append(arm.write(case))
            progress((number + 1) / len(workload))
        tg = _decode_speed(desk)
        context.close()
        weights = path.stat().st_size
        return Report(
            model=endpoint.name,
            kind=kind,
            rounds=rounds,
            pp=read_tokens / read_s,
            tg=tg,
            roofline_tg=bandwidth(threads) / weights,
            peak_memory=peak_memory(),
            contended=busy or contended(),
            rows=tuple(_rows(times, left_out)),
            left_out=left_out,
        )


@contextmanager
def _blamed(arm: Arm, left_out: dict[str, str]) -> Iterator[None]:
    """An arm other than ours that fails is left out, with what it said."""
    try:
        yield
    except Exception as error:
        if arm.name in (OURS, FREE, STEPPED):
            raise
        left_out[arm.name] = f"{type(error).__name__}: {error}"[:300]


def _arms(
    desk: Desk, path: Path, threads: int, engines: Sequence[str], create_completion: bool
) -> tuple[list[Arm], dict[str, str]]:
    protocol, left_out = desk.protocol, dict[str, str]()
    vocab = desk.context.model.vocab
    llguidance = engine_for("llguidance", vocab)  # for all arms: its tables take seconds at 262k tokens
    ours = Ours(OURS, desk, llguidance)
    found: list[Arm] = [
        ours,
        Stepped(desk, ours),
        Ours(FREE, desk, None),
        Ours(f"{OURS}, always masking", desk, llguidance, reject=False),
        Ours(f"{OURS}, not forcing", desk, llguidance, force=False),
    ]
    for name in engines:
        try:
            found.append(Ours(f"localreact, {name}", desk, engine_for(name, vocab)))
        except LocalReactError as error:
            left_out[f"localreact, {name}"] = str(error)
    if create_completion:
        llm = _llama(path, desk.context.n_ctx, threads)
        found.append(others.CreateCompletion("create_completion, free", llm, protocol, False))
        found.append(others.CreateCompletion("create_completion, grammar", llm, protocol, True))
    if "outlines" in engines:
        # A model of its own, since it forgets what it has read after every turn.
        found.append(others.OutlinesAsShipped(_llama(path, desk.context.n_ctx, threads), protocol))
    return found, left_out


def _llama(path: Path, n_ctx: int, threads: int) -> Any:
    return backend.load().Llama(
        str(path), n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads, verbose=False, flash_attn=False
    )


def _decode_speed(desk: Desk, tokens: int = 64) -> float:
    """llama-bench's tg: one token after the other, none of them chosen."""
    desk.put_back()
    at = len(desk._ids) - 1
    started = time.perf_counter()
    for n in range(tokens):
        desk.context.decode([Part(0, [desk._ids[-1]], at + n, True)])
    return tokens / (time.perf_counter() - started)


def _rows(times: Mapping[str, Mapping[str, list[Sample]]], left_out: Mapping[str, str]) -> Iterable[Row]:
    free, stepped = _typical(times[FREE]), _typical(times[STEPPED])
    for arm, samples in times.items():
        if arm in left_out:
            continue
        mine = _typical(samples)
        seconds = sum(each.seconds for each in mine.values())
        in_model = sum(each.model_s for each in mine.values())
        n = len(mine)
        to_free = to_stepped = None
        if arm != FREE:
            # Both as seconds a token, so that the resampled cases weigh alike.
            to_free = ratio(
                [free[c].seconds / free[c].tokens for c in mine],
                [mine[c].seconds / max(1, mine[c].tokens) for c in mine],
            )
        if arm.startswith(OURS):
            to_stepped = ratio([stepped[c].seconds for c in mine], [mine[c].seconds for c in mine])
        yield Row(
            arm=arm,
            tokens_per_s=sum(each.tokens for each in mine.values()) / seconds,
            ms_per_turn=1000 * median(each.seconds for each in mine.values()),
            first_ms=1000 * median(each.first_s for each in mine.values()),
            sampled=sum(each.sampled for each in mine.values()) / n,
            forced=sum(each.forced for each in mine.values()) / n,
            masks=sum(each.masks for each in mine.values()) / n,
            model_share=in_model / seconds,
            constraint_share=sum(each.constraint_s for each in mine.values()) / seconds,
            whole=sum(each.whole for each in mine.values()),
            cases=n,
            to_free=to_free,
            faster_than_stepped=to_stepped,
        )


def _typical(samples: Mapping[str, list[Sample]]) -> dict[str, Sample]:
    """For every case the round that took the median time."""
    return {
        case: sorted(rounds, key=lambda each: each.seconds)[len(rounds) // 2]
        for case, rounds in samples.items()
    }


def load_report(path: Path) -> dict[str, Any]:
    """What `--save` kept of `bench speed` or `bench scale`."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LocalReactError(f"{path} can't be read: {error}") from None
    if not isinstance(document, dict) or document.get("benchmark") not in ("speed", "scale"):
        raise LocalReactError(f"{path} is no result of `localreact bench`")
    return document

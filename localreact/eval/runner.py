"""Runs what of an evaluation isn't done yet."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from localreact.agent import Agent
from localreact.endpoints.base import Endpoint
from localreact.endpoints.resolve import open_endpoint
from localreact.errors import LocalReactError, UsageError
from localreact.eval.arms import Arm
from localreact.eval.framework import LangGraphAgent, langgraph_agent
from localreact.eval.journal import Attempt, Done, Journal
from localreact.eval.tasks import Suite, Task
from localreact.loop import NO_GRAMMAR
from localreact.tools import Toolbox
from localreact.types import Sampling

OpenEndpoint = Callable[[str, str], Endpoint]
"""From a model and an engine to an endpoint."""


@dataclass(frozen=True)
class Opening:
    """How models in process are opened; None: as their card, or this machine, says."""

    n_ctx: int | None = None
    n_threads: int | None = None
    deterministic: bool = False
    gpu_layers: int = 0

    def __call__(self, model: str, engine: str) -> Endpoint:
        return open_endpoint(
            model, self.n_ctx, self.n_threads, engine, self.deterministic, gpu_layers=self.gpu_layers
        )


@dataclass(frozen=True)
class Plan:
    """What an evaluation consists of. `seed` is the first round's, the others count on from it; with a
    task's id it makes the seed of a run.

    An attempt that failed for its endpoint is repeated up to `retries` times: that says nothing of a model.
    """

    suite: Suite
    models: tuple[str, ...]
    arms: tuple[Arm, ...]
    rounds: int = 1
    sampling: Sampling = field(default_factory=Sampling)
    retries: int = 2
    parallel: int = 1
    opening: Opening = field(default_factory=Opening)

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.parallel < 1 or self.retries < 0:
            raise UsageError("rounds and parallel tasks are at least 1, retries at least 0")

    @property
    def settings(self) -> dict[str, Any]:
        """What a resumed evaluation has to agree with."""
        return {
            "temperature": self.sampling.temperature,
            "seed": self.sampling.seed,
            "deterministic": self.opening.deterministic,
            "n_ctx": self.opening.n_ctx,
            "gpu_layers": self.opening.gpu_layers,
        }

    @property
    def items(self) -> list[Item]:
        """All there is to do, what shares an endpoint together."""
        engines = list(dict.fromkeys(arm.engine for arm in self.arms))
        return [
            Item(model, arm, number, task)
            for model in self.models
            for engine in engines
            for number in range(1, self.rounds + 1)
            for arm in self.arms
            if arm.engine == engine
            for task in self.suite.tasks
        ]


@dataclass(frozen=True)
class Item:
    model: str
    arm: Arm
    round: int
    task: Task

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.model, self.arm.name, self.round, self.task.id

    def trace(self, attempt: int) -> str:
        again = f".attempt{attempt}" if attempt > 1 else ""
        names = (_model_folder(self.model), _file_name(self.arm.name), f"round{self.round}")
        return "/".join(("traces", *names, f"{self.task.id}{again}.jsonl"))


def execute(
    plan: Plan,
    journal: Journal,
    cancel: threading.Event | None = None,
    open_model: OpenEndpoint | None = None,
) -> Generator[Done, None, None]:
    """Run what isn't in the journal, or was lost there, and yield each task when it is in it. `cancel` stops
    between turns; a task that was stopped so isn't done. `open_model` is used instead of the plan's opening.

    Raises:
        LocalReactError: a model can't be had, or an arm can't work on a task (nothing of it runs then).
    """
    cancel = cancel or threading.Event()
    if plan.parallel > 1 and plan.opening.deterministic:
        raise UsageError(
            "runs side by side on one model aren't deterministic",
            "Leave out -j, or give each its own process: --executor ray.",
        )
    opening = open_model or plan.opening
    lots = list(pending(plan, journal))
    for (model, engine), items in lots[1:]:  # the first is checked when it is opened to work
        with closing(opening(model, engine)) as endpoint:
            check(plan, items, endpoint)
    for number, ((model, engine), items) in enumerate(lots):
        if cancel.is_set():
            return
        with closing(opening(model, engine)) as endpoint:
            if number == 0:
                check(plan, items, endpoint)
            yield from _execute(plan, journal, items, endpoint, cancel)


def pending(plan: Plan, journal: Journal) -> Iterator[tuple[tuple[str, str], list[Item]]]:
    """What isn't done yet, or was lost, by model and engine."""
    items = [item for item in plan.items if (done := journal.done.get(item.key)) is None or done.lost]
    for shared, group in groupby(items, lambda item: (item.model, item.arm.engine)):
        yield shared, list(group)


def _execute(
    plan: Plan, journal: Journal, items: Iterable[Item], endpoint: Endpoint, cancel: threading.Event
) -> Generator[Done, None, None]:
    def finished(item: Item) -> Done | None:
        before = journal.done.get(item.key)
        done = None if cancel.is_set() else work(plan, item, endpoint, cancel, before, journal.folder)
        if done is not None:
            journal.add(done)
        return done

    if plan.parallel == 1:
        for item in items:
            if (done := finished(item)) is not None:
                yield done
        return
    with ThreadPoolExecutor(plan.parallel, "localreact eval") as pool:
        try:
            for future in as_completed([pool.submit(finished, item) for item in items]):
                if (done := future.result()) is not None:
                    yield done
        except BaseException:
            cancel.set()
            raise


def work(
    plan: Plan, item: Item, endpoint: Endpoint, cancel: threading.Event, before: Done | None, folder: Path
) -> Done | None:
    """The task with its attempts, those of an earlier evaluation `before`; None where it was cancelled."""
    attempts = list(before.attempts) if before else []
    for _ in range(plan.retries + 1):
        trace = item.trace(len(attempts) + 1)
        agent = _agent(plan, item, endpoint, folder / trace)
        run = agent.run(item.task.question, cancel, tool_choice=item.task.policy.get("tool_choice", "auto"))
        if run.status == "cancelled":
            cancel.set()
            return None
        lost = run.status == "endpoint_error" and not run.reason.startswith(NO_GRAMMAR)
        attempts.append(Attempt(trace, run.status, run.reason if lost else ""))
        if not lost:
            break
    return Done(*item.key, tuple(attempts), lost)


def _agent(plan: Plan, item: Item, endpoint: Endpoint, trace: Path | None) -> Agent | LangGraphAgent:
    sampling = replace(plan.sampling, seed=_seed(plan, item))
    if item.arm.protocol == "langgraph":
        toolbox = Toolbox(plan.suite.load_tools(item.task))
        return langgraph_agent(endpoint, toolbox, sampling, item.task.policy, trace)
    policy = {name: value for name, value in item.task.policy.items() if name != "tool_choice"}
    return Agent(
        item.arm.endpoint(endpoint),
        plan.suite.load_tools(item.task),
        sampling=sampling,
        trace=trace,
        **{**policy, **item.arm.settings},
    )


def _seed(plan: Plan, item: Item) -> int:
    """The same for all arms, and another for every task: runs with one seed share their noise, so that what
    happens to one in a round would happen to many."""
    digest = hashlib.sha256(f"{plan.sampling.seed + item.round - 1}/{item.task.id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1  # servers take 31 bits


def check(plan: Plan, items: Iterable[Item], endpoint: Endpoint) -> None:
    """That every arm can work on every kind of task."""
    seen = set()
    for item in items:
        if (
            kind := (item.arm, item.task.tools, item.task.docs, repr(sorted(item.task.policy.items())))
        ) not in seen:
            seen.add(kind)
            try:
                if item.arm.engine != "free" and not endpoint.languages:
                    raise UsageError("the endpoint enforces no grammar", "Compare it as PROTOCOL/free.")
                agent = _agent(plan, item, endpoint, None)
                if isinstance(agent, Agent):
                    choice = item.task.policy.get("tool_choice", "auto")
                    agent.stream(item.task.question, tool_choice=choice).close()  # nothing has begun yet
            except (LocalReactError, TypeError) as error:
                message = error.message if isinstance(error, LocalReactError) else str(error)
                hint = error.hint if isinstance(error, LocalReactError) else ""
                raise UsageError(
                    f"the arm {item.arm.name} can't work on the task {item.task.id}: {message}", hint
                ) from error


def _model_folder(model: str) -> str:
    """A file's path and an address lose characters, and two could become one."""
    name = _file_name(model)
    return name if name == model else f"{name}-{hashlib.sha256(model.encode()).hexdigest()[:6]}"


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", text).strip("_.") or "_"

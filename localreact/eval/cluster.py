"""`--executor ray`: the tasks spread over a Ray cluster, one replica of the model per actor.

Ray places the actors and hands out the tasks. The folder of the suite travels with them, and each result
comes back whole, with its traces; so a cluster shares nothing but the installed packages and, where a
model is named by its file, that file.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from localreact.endpoints.base import Endpoint
from localreact.errors import EndpointError, MissingPartError
from localreact.eval.journal import Done, Journal
from localreact.eval.runner import Item, Plan, check, pending, work

POLL = 0.5  # seconds until it is looked again whether the evaluation was cancelled


def execute_on_ray(
    plan: Plan, journal: Journal, cancel: threading.Event | None = None
) -> Generator[Done, None, None]:
    """As `runner.execute`, with `plan.parallel` replicas. `cancel` stops at once; what was under way isn't
    done. The cluster is the one that RAY_ADDRESS names; without it, one of this machine alone.

    Raises:
        MissingPartError: Ray isn't installed.
        EndpointError: the cluster can't be had, or a replica died.
        LocalReactError: as `execute`.
    """
    ray, cancel = _ray(), cancel or threading.Event()
    with _cluster(ray, plan.suite.place):
        for (model, engine), items in pending(plan, journal):
            if cancel.is_set():
                return
            actor = ray.remote(_Replica).options(scheduling_strategy="SPREAD")
            replicas = [
                actor.remote(plan, _from_anywhere(model), engine)
                for _ in range(min(plan.parallel, len(items)))
            ]
            try:
                with _as_raised(ray):
                    ray.get([each.open.remote(items) for each in replicas])
                    for done, traces in _spread(ray, replicas, items, journal, cancel):
                        _keep(journal, done, traces)
                        yield done
            finally:
                for each in replicas:
                    ray.kill(each)


class _Replica:
    """An actor. Its working folder is a copy of the suite's."""

    def __init__(self, plan: Plan, model: str, engine: str) -> None:
        self._plan = replace(plan, suite=replace(plan.suite, place=Path.cwd()))
        self._model, self._engine = model, engine
        self._endpoint: Endpoint | None = None

    def open(self, items: Sequence[Item]) -> None:
        """Not in `__init__`: what is raised there comes back as a dead actor."""
        self._endpoint = self._plan.opening(self._model, self._engine)
        check(self._plan, items, self._endpoint)

    def work(self, item: Item, before: Done | None) -> tuple[Done, Mapping[str, bytes]]:
        """The task, and its new traces by their names."""
        assert self._endpoint is not None
        with TemporaryDirectory() as folder:
            done = work(self._plan, item, self._endpoint, threading.Event(), before, Path(folder))
            assert done is not None  # nobody cancels in here
            new = done.attempts[len(before.attempts) if before else 0 :]
            return done, {each.trace: (Path(folder) / each.trace).read_bytes() for each in new}


def _spread(
    ray: Any, replicas: Sequence[Any], items: Sequence[Item], journal: Journal, cancel: threading.Event
) -> Iterator[tuple[Done, Mapping[str, bytes]]]:
    from ray.util import ActorPool

    pool = ActorPool(replicas)
    for item in items:
        pool.submit(lambda actor, each: actor.work.remote(each, journal.done.get(each.key)), item)
    while pool.has_next() and not cancel.is_set():
        try:
            yield pool.get_next_unordered(timeout=POLL)
        except TimeoutError:
            continue


def _keep(journal: Journal, done: Done, traces: Mapping[str, bytes]) -> None:
    """The traces first: a line in the journal says that they are there."""
    for name, data in traces.items():
        path = journal.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    journal.add(done)


def _from_anywhere(model: str) -> str:
    """A replica works in another folder."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.is_file() else model


@contextmanager
def _cluster(ray: Any, place: Path) -> Iterator[None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    try:
        ray.init(
            runtime_env={"working_dir": str(place.resolve())},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise EndpointError(
            f"the Ray cluster can't be had: {error}",
            "RAY_ADDRESS names it; without that it is this machine. The suite's folder travels to it.",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _as_raised(ray: Any) -> Iterator[None]:
    """An actor's error as it was raised there."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayActorError as error:
        raise EndpointError(
            f"a replica on the cluster died: {error}", "What was done is kept; the same command goes on."
        ) from error


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingPartError(
            "the executor ray needs Ray, and it isn't installed", "Run: pip install 'localreact[ray]'."
        ) from error
    return ray

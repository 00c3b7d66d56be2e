"""What a server counts, for Prometheus. A registry of its own for each server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from localreact.serve.parts import Ended
from localreact.serve.places import Places
from localreact.trace.events import RunEnded
from localreact.types import Timings, Usage

_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "localreact_requests",
            "Requests by route and status.",
            ("route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "localreact_request_seconds",
            "Seconds until a request was answered, by route.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._errors = Counter(
            "localreact_errors", "Requests that failed, by kind.", ("kind",), registry=self._registry
        )
        self._tokens = Counter("localreact_tokens", "Tokens by kind.", ("kind",), registry=self._registry)
        self._replies = Counter(
            "localreact_replies", "Replies by how they ended.", ("finish_reason",), registry=self._registry
        )
        self._runs = Counter(
            "localreact_runs", "Runs of the agent by how they ended.", ("status",), registry=self._registry
        )
        self._compile = Histogram(
            "localreact_grammar_seconds",
            "Seconds until a request's prompt and grammar were ready.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._generate = Counter(
            "localreact_generate_seconds", "Seconds spent generating.", registry=self._registry
        )
        self._constraint = Counter(
            "localreact_constraint_seconds", "Of those, in the grammar.", registry=self._registry
        )
        self._waiting = Gauge("localreact_waiting", "Replies that wait.", registry=self._registry)
        self._active = Gauge("localreact_active", "Replies being written.", registry=self._registry)

    def watch(self, places: Places) -> None:
        self._waiting.set_function(lambda: places.waiting)
        self._active.set_function(lambda: places.active)

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def failed(self, kind: str) -> None:
        self._errors.labels(kind).inc()

    def compiled(self, seconds: float) -> None:
        self._compile.observe(seconds)

    def ended(self, reply: Ended) -> None:
        self._count(reply.usage, reply.timings)
        self._replies.labels(reply.finish_reason).inc()

    def run_ended(self, run: RunEnded) -> None:
        self._count(run.usage, run.timings)
        self._runs.labels(run.status).inc()

    def _count(self, usage: Usage, timings: Timings) -> None:
        counts = {
            "prompt": usage.prompt,
            "reused": usage.reused,
            "sampled": usage.sampled,
            "forced": usage.forced,
            "reasoning": usage.reasoning,
        }
        for kind, count in counts.items():
            self._tokens.labels(kind).inc(count)
        self._generate.inc(max(0.0, timings.generate_s))
        self._constraint.inc(max(0.0, timings.constraint_s))

    def text(self) -> bytes:
        return generate_latest(self._registry)

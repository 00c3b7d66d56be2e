"""Several servers with the same model as one endpoint."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Sequence

from localreact.endpoints.base import level_of
from localreact.endpoints.server import ServerEndpoint
from localreact.errors import EndpointError, ServerError, UsageError
from localreact.types import Completion, Limits, Prompt, Sampling, Segment, Span, TurnGrammar

DOWN_S = 10.0  # a server that failed is left alone for so long, then looked at again
RUNS_KEPT = 1024


class _Replica:
    def __init__(self, endpoint: ServerEndpoint) -> None:
        self.endpoint = endpoint
        self.running = 0
        self.down_until = 0.0


class ReplicaEndpoint:
    """Each turn goes to one server. A run stays where its prefix is cached, as long as that server
    answers; a new run goes to the server with the fewest turns under way.

    A turn that fails before its first text is tried on the next server: completions have no side effects. A
    server that failed is left alone for a while, then asked whether it is there before it gets a turn.

    Raises:
        UsageError: the servers don't serve the same model in the same way.
    """

    def __init__(self, endpoints: Sequence[ServerEndpoint]) -> None:
        first = endpoints[0]
        for other in endpoints[1:]:
            if other.chat != first.chat or other.card != first.card:
                raise UsageError(
                    f"{first.name} and {other.name} aren't replicas: their models or chat formats differ",
                    "List servers with commas only where all serve the same model.",
                )
        self._replicas = [_Replica(each) for each in endpoints]
        self.name = ", ".join(each.name for each in endpoints)
        self.fingerprint = first.fingerprint
        self.languages = tuple(
            language for language in first.languages if all(language in each.languages for each in endpoints)
        )
        for each in endpoints:
            each.keep(self.languages)
        self.chat, self.card, self.reasoning = first.chat, first.card, first.reasoning
        self.n_ctx = min(each.n_ctx for each in endpoints)
        self.notices = list(dict.fromkeys(notice for each in endpoints for notice in each.notices))
        self._lock = threading.Lock()
        self._homes: OrderedDict[tuple[Segment, ...], _Replica] = OrderedDict()

    @property
    def level(self) -> str:
        return level_of(self.languages)

    def count(self, prompt: Prompt) -> int:
        return (self._home(prompt) or self._replicas[0]).endpoint.count(prompt)

    def check(self, grammar: TurnGrammar) -> None:
        """By every server that answers; one at least has to."""
        failures = []
        for replica in self._replicas:
            try:
                replica.endpoint.check(grammar)
            except EndpointError as error:
                replica.down_until = time.monotonic() + DOWN_S
                failures.append(error)
        if len(failures) == len(self._replicas):
            raise failures[-1]

    def check_sampling(self, sampling: Sampling) -> None:
        """
        Raises:
            UsageError: one of the servers can't choose tokens so.
        """
        for replica in self._replicas:
            replica.endpoint.check_sampling(sampling)

    def complete(
        self, prompt: Prompt, grammar: TurnGrammar | None, limits: Limits, sampling: Sampling, turn: int = 0
    ) -> Generator[Span, None, Completion]:
        failed: list[_Replica] = []
        while True:
            replica = self._choose(prompt, failed)
            begun = False
            try:
                if replica.down_until:
                    replica.endpoint.dialect.alive(limits)
                    replica.down_until = 0.0
                writing = replica.endpoint.complete(prompt, grammar, limits, sampling, turn)
                try:
                    while True:
                        span = next(writing)
                        begun = True
                        yield span
                except StopIteration as end:
                    completion: Completion = end.value
                    return completion
                finally:
                    writing.close()
            except EndpointError as error:
                final = isinstance(error, ServerError) and error.status < 500 and error.status != 429
                replica.down_until = time.monotonic() + (0 if final else DOWN_S)
                failed.append(replica)
                if begun or final or len(failed) == len(self._replicas):
                    raise
            finally:
                with self._lock:
                    replica.running -= 1

    def _choose(self, prompt: Prompt, failed: Sequence[_Replica]) -> _Replica:
        """The server for a turn; from here on it counts as one turn busier."""
        home, now = self._home(prompt), time.monotonic()
        with self._lock:
            left = [each for each in self._replicas if each not in failed]
            up = [each for each in left if each.down_until <= now]
            best = home if home in up else min(up or left, key=lambda each: each.running)
            best.running += 1
            self._homes.pop(home_key := prompt.segments, None)
            self._homes[home_key] = best
            while len(self._homes) > RUNS_KEPT:
                self._homes.popitem(last=False)
            return best

    def _home(self, prompt: Prompt) -> _Replica | None:
        """Where the prompt that this one continues was worked on: the longest known beginning of it."""
        with self._lock:
            for length in range(len(prompt.segments), 0, -1):
                if (replica := self._homes.get(prompt.segments[:length])) is not None:
                    return replica
        return None

    def close(self) -> None:
        for replica in self._replicas:
            replica.endpoint.close()

"""Who gets a run's events: its trace first, then everybody else."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing
from pathlib import Path

from localreact.errors import TraceError
from localreact.run import Ending, RunState
from localreact.trace.events import Event, RunEnded
from localreact.trace.jsonl import TraceWriter

Observer = Callable[[], Callable[[Event], None]]
"""Called when a run begins; what it returns is fed the run's events."""


def observed(
    events: Generator[Event, None, None],
    state: RunState,
    trace: Path | None,
    after: int | None,
    observers: Iterable[Observer],
) -> Generator[Event, None, None]:
    """The events, each in the trace and seen by the observers before the next one happens.

    The trace ends whatever happens; `after` how many bytes of it this goes on, if it isn't new.

    Raises:
        TraceError: the trace can't be written.
    """
    with ExitStack() as stack:
        stack.enter_context(closing(events))
        consumers: list[Callable[[Event], None]] = []
        if trace:
            consumers.append(stack.enter_context(TraceWriter(trace, after)).write)
        consumers += [observer() for observer in observers]

        def record(event: Event) -> None:
            for consume in consumers:
                consume(event)

        event: Event | None = None
        try:
            for event in events:
                record(event)
                yield event
        except TraceError:
            raise
        except BaseException as error:  # nobody reads on, Ctrl-C, or a bug: the trace still ends
            if event is not None and not isinstance(event, RunEnded):
                closed = isinstance(error, GeneratorExit | KeyboardInterrupt)
                reason = "the stream was closed" if closed else f"{type(error).__name__}: {error}"
                try:
                    events.close()
                finally:
                    if state.untold is not None:
                        record(state.untold)
                    record(state.ended(Ending("cancelled" if closed else "endpoint_error", reason)))
            raise

"""What an agent is made of, and a sitting of a run with it: begun, gone on with, or gone through again."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from localreact import context, fitting
from localreact._version import __version__
from localreact.archive import Archive
from localreact.loop import Loop, to_the_end
from localreact.native import LEVEL, VERSION, NativeLoop, run_native
from localreact.recorded import Recording, check, settings, setup
from localreact.run import RunState
from localreact.trace.events import Event, ProtocolChanged, RunStarted
from localreact.trace.reading import Trace


@dataclass(frozen=True)
class Parts:
    """`opening` is what prompts begin with, `language` the grammar language that holds turns, and `level`
    the same in words; `spelling` and `examples` say how the opening was written."""

    loop: Loop
    native: NativeLoop | None
    opening: context.Transcript
    spelling: Mapping[str, Any]
    examples: int
    language: str
    level: str
    archive: Archive | None

    @property
    def usable_native(self) -> NativeLoop | None:
        return self.native if self.native and not self.native.objection else None

    @property
    def version(self) -> str:
        """Of the protocol that runs begin with."""
        return VERSION if self.usable_native else self.loop.protocol.version

    def begun(self, loop: Loop, state: RunState, cancel: threading.Event) -> Generator[Event, None, None]:
        """A run from its beginning. `loop` is what holds for this run."""
        native = self.usable_native
        state.recalled = self.archive.recall(state.question) if self.archive else ()
        yield self._started(loop, state, native)
        yield from self._looped(loop, state, cancel, native)

    def resumed(
        self, loop: Loop, state: RunState, cancel: threading.Event, recording: Recording
    ) -> Generator[Event, None, None]:
        """What comes after what was recorded."""
        with closing(self._looped(recording.loop(loop), state, cancel)) as recorded:
            new = recording.follow(recorded, state)
            first = next(new)  # before the trace is written to: it may turn out not to fit
            yield replace(self._started(loop, state), resumed=recording.steps)
            yield first
            yield from new

    def replayed(self, trace: Trace, answer: Any, execute: bool) -> Iterator[tuple[Event, Event]]:
        """Each recorded event, and what comes of it now."""
        loop, state = self.as_recorded(trace, answer)
        recording = Recording(trace, whole=True)
        with closing(self._looped(recording.loop(loop, execute), state, threading.Event())) as events:
            yield from recording.pairs(events, state)

    def as_recorded(self, trace: Trace, answer: Any) -> tuple[Loop, RunState]:
        """What held for a recorded run, and its state before it began."""
        began = trace.started
        loop = fitting.for_run(self.loop, str(began.settings.get("tool_choice", "auto")), answer)
        state = RunState(
            began.question, began.run_id, recalled=began.recalled, parent=began.parent, trace=trace.path
        )
        return loop, state

    def recording(self, trace: Trace, loop: Loop, state: RunState, other_model: bool) -> Recording:
        """
        Raises:
            UsageError: the run has its answer, or was made of other parts.
        """
        check(trace, self._started(loop, state), other_model)
        return Recording(trace, same_model=trace.started.fingerprint == loop.endpoint.fingerprint)

    def _looped(
        self, loop: Loop, state: RunState, cancel: threading.Event, native: NativeLoop | None = None
    ) -> Generator[Event, None, None]:
        transcript = self.opening.copy()
        transcript.ask(context.question(state.question, loop.policy.answer_type, state.recalled))
        if native is None:
            running = loop.run(state, transcript, cancel)
        else:
            changed = ProtocolChanged(loop.protocol.version, self.language, self.level, "")
            running = run_native(native, loop, state, transcript, cancel, changed)
        ending = yield from to_the_end(running)
        ended = state.ended(ending)
        yield ended
        if self.archive:
            self.archive.add(state.outcome(ended))

    def _started(self, loop: Loop, state: RunState, native: NativeLoop | None = None) -> RunStarted:
        return RunStarted(
            run_id=state.run_id,
            question=state.question,
            protocol=VERSION if native else loop.protocol.version,
            model=loop.endpoint.name,
            fingerprint=loop.endpoint.fingerprint,
            enforced="" if native else self.language,
            level=LEVEL if native else self.level,
            chat_format=loop.endpoint.chat.name,
            tools=tuple(spec.name for spec in loop.toolbox.specs),
            settings=settings(loop),
            version=__version__,
            setup=setup(loop, self.spelling, self.examples),
            recalled=state.recalled,
            parent=state.parent,
        )

"""Many turns at a time: one worker thread evaluates all of them in one batch after another.

Callers are ordinary threads that read a generator each. A turn is written whether its caller reads or not
(it has an end), so a caller that stops reading holds up nobody; one that closes its generator frees the
place. The worker ends when it has had nothing to do for a while, or the scheduler is closed.
"""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field

from localreact.decoding.context import Context, Logits, Part
from localreact.decoding.loop import TurnWriter
from localreact.decoding.memory import Held, Memory, common
from localreact.decoding.prefixes import PrefixStore
from localreact.errors import EndpointError
from localreact.types import Completion, Span

LINGER_S = 30.0
"""A worker without work stays for the next turn: a new thread would need new OpenMP threads."""

MARGIN = 64
"""Tokens of room beyond its prompt that a turn needs before it joins others."""

WORTH_KEEPING = 64
"""Tokens below which an opening is sooner evaluated than read from disk."""


MAX_STATES = 4


@dataclass(eq=False)
class Turn:
    """A turn and where it stands. `ids` are prompt and turn so far, of which memory holds some.
    The first `opening` tokens are the same for many runs, and always evaluated on their own."""

    writer: TurnWriter
    opening: int
    ids: list[int]
    thread: threading.Thread
    out: queue.SimpleQueue[Span | Completion | BaseException] = field(default_factory=queue.SimpleQueue)
    held: Held | None = None
    begun: bool = False
    abandoned: bool = False

    @property
    def done(self) -> int:
        """Tokens evaluated."""
        return 0 if self.held is None else len(self.held.ids)

    @property
    def reading(self) -> bool:
        """Whether there is more of the prompt to read than one step's text."""
        return self.done < len(self.writer.prompt)

    @property
    def in_opening(self) -> bool:
        return self.done < self.opening

    def stopped(self) -> bool:
        return self.abandoned or self.writer.interrupted()


class Scheduler:
    """Owns the context: nobody else may use it.

    Args:
        parallel: turns at a time; others wait.
        exact: the same run always evaluates the same batches, for bit-identical results (one at a time).
        store: where openings are kept between processes.
    """

    def __init__(
        self, context: Context, parallel: int, exact: bool = False, store: PrefixStore | None = None
    ) -> None:
        self.parallel = parallel
        self.evaluated = 0
        """Tokens evaluated so far."""
        self.batches = 0
        self.memory = Memory(context, exact)
        self._context = context
        self._store = store
        self._exact = exact
        # A restored opening lies in memory as any other restored one does, one that was evaluated or
        # shared may not: in sliding windows, and beside others. So exact runs always restore.
        self._states: dict[tuple[int, ...], memoryview] = {}
        self._waiting: deque[Turn] = deque()
        self._active: list[Turn] = []
        self._changed = threading.Condition()
        self._worker: threading.Thread | None = None
        self._saving: list[threading.Thread] = []
        self._may_admit = False  # whether something has changed since the last try
        self._closed = False
        self._at_end: Callable[[], None] = lambda: None
        _all.add(self)

    # --- on the callers' threads

    def write(self, writer: TurnWriter, opening: int = 0) -> Generator[Span, None, Completion]:
        """Write a turn. Yields its text as it is made; returns the whole.

        Raises:
            EndpointError: the model failed, or is closed.
            GrammarError: no token of the vocabulary can continue the turn.
        """
        turn = Turn(writer, opening, list(writer.prompt), threading.current_thread())
        writer.emit = turn.out.put
        with self._changed:
            if self._closed:
                raise EndpointError("the model is closed", "Open it again.")
            self._waiting.append(turn)
            self._may_admit = True
            if (worker := self._worker) is None:
                self._worker = worker = threading.Thread(
                    target=self._work, name="localreact decoding", daemon=True
                )
                worker.start()
            self._changed.notify_all()
        try:
            while True:
                try:
                    item = turn.out.get(timeout=1)  # not for ever: Windows hears no Ctrl-C meanwhile
                except queue.Empty:
                    if not worker.is_alive() and turn.out.empty():  # the interpreter is ending
                        raise EndpointError("the model was closed in the middle of a turn") from None
                    continue
                if isinstance(item, Completion):
                    return item
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            turn.abandoned = True

    def writes_for(self, thread: threading.Thread) -> bool:
        """Whether a turn that this thread asked for is unfinished."""
        return any(turn.thread is thread for turn in (*self._active, *self._waiting) if not turn.abandoned)

    def close(self, at_end: Callable[[], None]) -> threading.Thread | None:
        """Take no more turns; when those under way have ended, call `at_end`, which may free the context.
        The thread that will do so, to wait for; None where it was done at once."""
        with self._changed:
            if self._closed:
                return self._worker
            self._closed = True
            self._at_end = at_end
            worker = self._worker
            self._changed.notify_all()
        if worker is None:
            self._finish()
        return worker

    def stop(self, seconds: float) -> None:
        """Abandon all turns, and wait a while for the worker."""
        for turn in (*self._active, *self._waiting):
            turn.abandoned = True
        worker = self.close(lambda: None)
        if worker is not None:
            worker.join(seconds)

    # --- on the worker's thread

    def _work(self) -> None:
        while self._waiting or self._active or self._has_work():
            try:
                self._step()
            except BaseException as error:  # a bug, or no memory: nobody may wait for ever
                for turn in (*self._active, *self._waiting):
                    self._end(turn, error)

    def _has_work(self) -> bool:
        """Wait for some; False where this worker is to end."""
        with self._changed:
            while not self._closed:
                if self._waiting or self._active:
                    return True
                lingered = not self._changed.wait(LINGER_S)
                if lingered and not self._waiting and not self._closed:  # both may change at the last moment
                    self._worker = None
                    return False
            if self._waiting or self._active:
                return True
        self._finish()
        return False

    def _finish(self) -> None:
        for saving in self._saving:
            saving.join()
        self._at_end()

    def _step(self) -> None:
        """One batch, and what comes of it."""
        for turn in [turn for turn in (*self._active, *self._waiting) if turn.stopped()]:
            self._end(turn)
        self._admit()
        parts = self._batch()
        while parts and not self.memory.make_room(sum(len(part.ids) for _, part in parts)):
            parts = self._without_the_latest(parts)
        try:
            logits = None
            while parts and (logits := self._context.decode([part for _, part in parts])) is None:
                if not self.memory.drop_idlest():
                    parts = self._without_the_latest(parts)
        except EndpointError as error:
            for turn, _ in parts:
                self._end(turn, EndpointError(error.message, error.hint))
        if logits is None:
            return
        self.batches += 1
        for turn, part in parts:
            assert turn.held is not None
            self.evaluated += len(part.ids)
            self.memory.grow(turn.held, part.ids)
            if turn.done == turn.opening:
                self._keep_opening(turn)
        for (turn, _), after in zip([each for each in parts if each[1].wanted], logits, strict=True):
            self._advance(turn, after)

    def _admit(self) -> None:
        """Begin waiting turns, in the order in which they came."""
        if not self._may_admit:
            return
        self._may_admit = False
        for turn in list(self._waiting):
            if len(self._active) >= self.parallel:
                break
            if any(other.in_opening and _same_opening(turn, other) for other in self._active):
                self._may_admit = True  # it will have that opening for nothing, soon
                continue
            if not self._place(turn):
                break
            self._waiting.remove(turn)
            self._active.append(turn)
            if not turn.begun:
                turn.begun = True
                turn.writer.begin(turn.done)
                self._advance(turn, None)

    def _place(self, turn: Turn) -> bool:
        """Give a turn its sequence; False where there is no room now."""
        held = self.memory.claim(turn.ids, turn.opening, turn.thread)
        if held is None:
            return False
        turn.held = held
        if turn.in_opening:
            self._restore_opening(turn, held)
        needed = len(turn.ids) - turn.done
        if not self._active or self.memory.room_beside_busy >= needed + MARGIN:
            return True
        self.memory.release(held)
        turn.held = None
        return False

    def _batch(self) -> list[tuple[Turn, Part]]:
        """The next tokens of every turn that is being written, and of prompts what else fits; while
        somebody writes, at most half a batch, so that the writing goes on."""
        size = self._context.n_batch
        parts: list[tuple[Turn, Part]] = []
        for reading in (False, True):
            limit = size // 2 if reading and parts else size
            room = min(limit, size - sum(len(part.ids) for _, part in parts))
            for turn in self._active:
                if turn.reading == reading and room > 0:
                    end = min(len(turn.ids), turn.done + room)
                    if turn.in_opening:
                        end = min(end, turn.opening)
                    ids = turn.ids[turn.done : end]
                    room -= len(ids)
                    assert turn.held is not None
                    parts.append((turn, Part(turn.held.number, ids, turn.done, end == len(turn.ids))))
        return parts

    def _advance(self, turn: Turn, logits: Logits | None) -> None:
        """Tell a turn its logits; what it wants evaluated next is in its `ids` then."""
        try:
            new = turn.writer.advance(logits)
        except BaseException as error:
            self._end(turn, error)
            return
        turn.ids += new
        if not new and turn.writer.stop is not None:
            self._end(turn)

    def _without_the_latest(self, parts: list[tuple[Turn, Part]]) -> list[tuple[Turn, Part]]:
        """Let the turn that began last wait until there is room; what it had evaluated is lost. The first
        one never is, so that every turn ends some time."""
        latest = self._active[-1]
        if len(self._active) == 1:
            self._end(latest, EndpointError("the context has no room for the turn", "Ask for more (--ctx)."))
        else:
            self._active.remove(latest)
            if latest.held is not None:
                self.memory.drop(latest.held)
            latest.held = None
            self._waiting.appendleft(latest)
        return [each for each in parts if each[0] is not latest]

    def _end(self, turn: Turn, error: BaseException | None = None) -> None:
        for turns in (self._active, self._waiting):
            if turn in turns:
                turns.remove(turn)
        self._may_admit = True
        if turn.held is not None:
            (self.memory.drop if error else self.memory.release)(turn.held)
            turn.held = None
        if error is not None:
            turn.out.put(error)
        elif turn.writer.stop is not None:
            turn.out.put(turn.writer.completion())

    # --- openings

    def _restore_opening(self, turn: Turn, held: Held) -> None:
        ids = turn.ids[: turn.opening]
        state = self._states.get(tuple(ids))
        if state is None and self._store and turn.opening >= WORTH_KEEPING:
            state = self._store.get(ids)
        if state is not None and self.memory.fill(held, ids, state):
            self._remember(held, state)

    def _keep_opening(self, turn: Turn) -> None:
        """An opening was evaluated: other runs of this process and of later ones shall have it."""
        held, ids = turn.held, turn.ids[: turn.opening]
        assert held is not None
        stored = self._store is not None and turn.opening >= WORTH_KEEPING
        state = self._context.save(held.number) if stored or self._exact else memoryview(b"")
        if stored and state and self._store is not None:
            saving = threading.Thread(target=self._store.put, args=(ids, state))
            with suppress(RuntimeError):  # the interpreter is about to end
                saving.start()
                self._saving.append(saving)
        # So that this run too goes on from a restored state.
        if state and self._exact and not self.memory.fill(held, ids, state):
            raise EndpointError("llama.cpp can't restore what it saved", "Run without --deterministic.")
        self._remember(held, state)

    def _remember(self, held: Held, state: memoryview) -> None:
        if not self._exact:
            self.memory.keep_opening(held)
        elif state:
            self._states[tuple(held.ids)] = state
            if len(self._states) > MAX_STATES:
                del self._states[next(iter(self._states))]


def _same_opening(turn: Turn, other: Turn) -> bool:
    return turn.opening == other.opening == common(turn.ids, other.ids, turn.opening)


_all: weakref.WeakSet[Scheduler] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """No worker may be inside llama.cpp when its library is torn down."""
    for scheduler in list(_all):
        scheduler.stop(10)

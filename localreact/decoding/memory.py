"""Which tokens a context's memory holds, for whom, and what a new prompt can reuse of them.

A sequence is a history that a turn was written on, or an opening that runs share. Sequences that begin
alike share cells, so a copy costs nothing. When cells run short, what nobody needs goes first.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from localreact.decoding.context import Context


@dataclass(eq=False)
class Held:
    """One sequence: `ids` are its tokens in memory, `cells` the numbers (ours) of what holds them."""

    number: int
    ids: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    busy: bool = False
    opening: bool = False
    owner: weakref.ref[threading.Thread] | None = None
    used: int = 0

    def left_by_its_owner(self, thread: threading.Thread | None) -> bool:
        """Whether nobody will go on with it, as far as can be known: a thread works on one run at a time,
        so one that asks for something else (or has ended) is done with what it had."""
        owner = self.owner() if self.owner is not None else None
        return not self.opening and (owner is None or owner is thread or not owner.is_alive())


class Memory:
    """The sequences of one context. Not thread-safe.

    `exact`: a prompt continues a whole history of its own thread, or starts in an empty memory; so the same
    run always finds the same state.
    """

    def __init__(self, context: Context, exact: bool = False) -> None:
        self._context = context
        self._exact = exact
        self.kept = 0
        """So many histories stay although their owners have left them: a server's clients come back on
        other threads. They cost time: attention looks at all cells in use."""

        self._held: list[Held] = []
        self._free_numbers = list(range(context.n_sequences))
        self._users: Counter[int] = Counter()  # how many sequences share a cell
        self._next_cell = 0
        self._clock = 0

    @property
    def free(self) -> int:
        return self._context.n_ctx - len(self._users)

    def claim(self, ids: Sequence[int], opening: int, thread: threading.Thread | None) -> Held | None:
        """A sequence for a turn after `ids`, of which it holds what could be reused, but not the last.
        None where all sequences are busy."""
        best, keep = self._best(ids, opening, thread)
        left = [
            held
            for held in self._idle()
            if held is not best and (self._exact or held.left_by_its_owner(thread))
        ]
        for held in sorted(left, key=lambda held: held.used)[: max(0, len(left) - self.kept)]:
            self.drop(held)
        if self._exact and best is None:
            self._context.clear()
        if best is None or best.busy or best.opening or not self._taken_over(best, keep, thread):
            fork = self._new(spare=best)
            if fork is None:
                return None
            if best is not None:
                self._copy(best, fork, keep)
            best = fork
        else:
            self._cut(best, keep)
        best.busy = True
        best.owner = weakref.ref(thread) if thread is not None else None
        self._touch(best)
        return best

    @property
    def room_beside_busy(self) -> int:
        """Cells that are free once all idle sequences are dropped."""
        return self._context.n_ctx - len({cell for held in self._held if held.busy for cell in held.cells})

    def fill(self, held: Held, ids: Sequence[int], state: memoryview) -> bool:
        """Let a sequence hold a saved state instead; False (and it is empty) where that can't be."""
        self._cut(held, 0)
        if self._exact:
            self._context.clear()
        if not self.make_room(len(ids)) or not self._context.restore(held.number, state, len(ids)):
            return False
        self.grow(held, ids)
        return True

    def grow(self, held: Held, ids: Sequence[int]) -> None:
        """`ids` were evaluated after what the sequence holds."""
        held.ids.extend(ids)
        cells = range(self._next_cell, self._next_cell + len(ids))
        self._next_cell += len(ids)
        held.cells.extend(cells)
        self._users.update(cells)

    def keep_opening(self, held: Held) -> Held | None:
        """Keep what a sequence holds now for other runs. None where no sequence is free for that."""
        for known in self._held:
            if known.opening and known.ids == held.ids:
                return known
        kept = self._new(spare=held)
        if kept is not None:
            self._copy(held, kept, len(held.ids))
            kept.opening = True
            self._touch(kept)
        return kept

    def release(self, held: Held) -> None:
        """The turn on it has ended; what it holds stays for the next."""
        held.busy = False
        self._touch(held)
        if not held.ids:
            self.drop(held)

    def drop(self, held: Held) -> None:
        self._cut(held, 0)
        self._held.remove(held)
        self._free_numbers.append(held.number)
        self._free_numbers.sort()

    def make_room(self, cells: int) -> bool:
        """Drop idle sequences, the least recently used first, until so many cells are free."""
        while self.free < cells:
            if not self.drop_idlest():
                return False
        return True

    def drop_idlest(self) -> bool:
        """Histories go before openings; False where everything is busy."""
        idle = self._idle()
        if idle:
            self.drop(min(idle, key=lambda held: (held.opening, held.used)))
        return bool(idle)

    def _best(
        self, ids: Sequence[int], opening: int, thread: threading.Thread | None
    ) -> tuple[Held | None, int]:
        """The sequence that shares most with `ids`, and how much can be kept of it."""
        best, most = None, 0
        for held in self._held:
            n = common(held.ids, ids, len(ids) - 1)
            whole = n == len(held.ids) > opening and held.owner is not None and held.owner() is thread
            if self._exact and not whole:
                continue
            better = n > most or (n == most and best is not None and best.opening and not held.busy)
            if n and better and self._context.keeps(held.number, len(held.ids), n):
                best, most = held, n
        return best, most

    def _taken_over(self, held: Held, keep: int, thread: threading.Thread | None) -> bool:
        return keep == len(held.ids) or (not self.kept and held.left_by_its_owner(thread))

    def _idle(self) -> list[Held]:
        return [held for held in self._held if not held.busy]

    def _new(self, spare: Held | None) -> Held | None:
        """An empty sequence, where need be in place of the idlest one but `spare`."""
        if not self._free_numbers:
            idle = [held for held in self._idle() if held is not spare]
            if not idle:
                return None
            self.drop(min(idle, key=lambda held: (held.opening, held.used)))
        held = Held(self._free_numbers.pop(0))
        self._held.append(held)
        return held

    def _copy(self, source: Held, target: Held, n: int) -> None:
        self._context.copy(source.number, target.number, n)
        target.ids, target.cells = source.ids[:n], source.cells[:n]
        self._users.update(target.cells)
        self._touch(source)

    def _cut(self, held: Held, keep: int) -> bool:
        whole = self._context.cut(held.number, keep) if keep < len(held.ids) or not keep else True
        if not whole:
            keep = 0
        for cell in held.cells[keep:]:
            self._users[cell] -= 1
            if not self._users[cell]:
                del self._users[cell]
        del held.ids[keep:], held.cells[keep:]
        return whole

    def _touch(self, held: Held) -> None:
        self._clock += 1
        held.used = self._clock


def common(a: Sequence[int], b: Sequence[int], most: int) -> int:
    """How many tokens both begin with, at most `most`."""
    low, high = 0, min(len(a), len(b), most)
    if a[:high] == b[:high]:
        return high
    while low + 1 < high:  # a[:low] is equal, a[:high] isn't
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low

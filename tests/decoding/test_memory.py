from __future__ import annotations

import threading
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from localreact.decoding.memory import Held, Memory, common


class FakeContext:
    """Sequences as llama.cpp has them: lists of cells, shared by copies."""

    def __init__(self, n_ctx: int, n_sequences: int) -> None:
        self.n_ctx, self.n_sequences = n_ctx, n_sequences
        self.cells: dict[int, list[object]] = {n: [] for n in range(n_sequences)}

    def keeps(self, sequence: int, held: int, wanted: int) -> bool:
        assert len(self.cells[sequence]) == held
        return True

    def cut(self, sequence: int, keep: int) -> bool:
        del self.cells[sequence][keep:]
        return True

    def clear(self) -> None:
        for cells in self.cells.values():
            cells.clear()

    def copy(self, source: int, target: int, n: int) -> None:
        assert not self.cells[target]
        self.cells[target] = self.cells[source][:n]

    def used(self) -> int:
        return len({id(cell) for cells in self.cells.values() for cell in cells})


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=12)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), PROMPTS, st.integers(0, 2)),
        st.tuples(st.just("grow"), PROMPTS, st.integers(0, 5)),
        st.tuples(st.sampled_from(["release", "drop", "opening"]), st.just([]), st.integers(0, 5)),
        st.tuples(st.just("room"), st.just([]), st.integers(1, 30)),
    ),
    max_size=40,
)
THREADS = [threading.Thread() for _ in range(3)]  # never started: no history outlives a claim


@given(actions=ACTIONS, exact=st.booleans(), kept=st.integers(0, 2))
def test_the_books_agree_with_the_memory(
    actions: list[tuple[str, list[int], int]], exact: bool, kept: int
) -> None:
    context: Any = FakeContext(60, 4)
    memory = Memory(context, exact)
    memory.kept = 0 if exact else kept
    busy: list[Held] = []
    for action, ids, number in actions:
        chosen = busy[number % len(busy)] if busy else None
        if action == "claim" and not (exact and busy):
            held = memory.claim(ids, 0, THREADS[number])
            if held is None:
                assert len(busy) >= (4 if not kept else 3)
                continue
            assert held not in busy
            assert held.ids == ids[: len(held.ids)]
            assert len(held.ids) < len(ids)
            busy.append(held)
        elif action == "grow" and chosen is not None and memory.make_room(len(ids)):
            context.cells[chosen.number] += [object() for _ in ids]
            memory.grow(chosen, ids)
        elif action in ("release", "drop") and chosen is not None:
            busy.remove(chosen)
            (memory.release if action == "release" else memory.drop)(chosen)
        elif action == "opening" and chosen is not None and chosen.ids:
            memory.keep_opening(chosen)
        elif action == "room" and memory.make_room(number):
            assert memory.free >= number
        assert memory.free == 60 - context.used()
        assert 60 - memory.room_beside_busy == len(
            {id(cell) for held in busy for cell in context.cells[held.number]}
        )
        assert all(held in memory._held for held in busy)
        for held in memory._held:
            assert len(context.cells[held.number]) == len(held.ids)


def test_histories_that_threads_left_go_and_openings_stay() -> None:
    context: Any = FakeContext(100, 4)
    memory = Memory(context)
    me = threading.current_thread()

    def work(ids: list[int], thread: threading.Thread) -> Held:
        held = memory.claim(ids, 3, thread)
        assert held is not None
        new = ids[len(held.ids) :]
        context.cells[held.number] += [object() for _ in new]
        memory.grow(held, new)
        return held

    first = work([1, 2, 3], me)
    memory.keep_opening(first)
    memory.grow(first, [4])
    context.cells[first.number].append(object())
    memory.release(first)
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    again = work([1, 2, 3, 4, 5], me)
    assert again is first  # it goes on with its own
    memory.release(again)
    other = work([1, 2, 3, 9], ended)
    assert other.number != first.number  # somebody else's is left to them
    assert first in memory._held
    memory.release(other)
    work([1, 2, 3, 7], me)
    assert other not in memory._held  # its thread has ended
    assert [held.ids for held in memory._held if held.opening] == [[1, 2, 3]]


def test_histories_that_are_to_be_kept_outlive_their_threads_and_are_gone_on_with() -> None:
    context: Any = FakeContext(100, 6)
    memory = Memory(context)
    memory.kept = 2

    def work(*prompt: int) -> Held:
        ids = list(prompt)
        held = memory.claim(ids, 0, threading.Thread())  # one that nobody will see again
        assert held is not None
        new = ids[len(held.ids) :]
        context.cells[held.number] += [object() for _ in new]
        memory.grow(held, new)
        memory.release(held)
        return held

    first, second = work(1, 2, 3), work(1, 2, 8)
    assert work(1, 2, 3, 4) is first
    assert work(1, 2, 8, 9) is second
    work(5)
    work(6)
    assert first not in memory._held  # the one that was left alone the longest


@given(a=PROMPTS, b=PROMPTS, most=st.integers(0, 12))
def test_what_two_prompts_begin_with(a: list[int], b: list[int], most: int) -> None:
    plain = 0
    while plain < min(len(a), len(b), most) and a[plain] == b[plain]:
        plain += 1
    assert common(a, b, most) == plain

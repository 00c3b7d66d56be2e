from __future__ import annotations

import errno
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from localreact.decoding import prefixes
from localreact.decoding.prefixes import PrefixStore

IDS = [1, 2, 3, 50_000]


def state(fill: int, size: int = 1000) -> memoryview:
    return memoryview(bytearray([fill]) * size)


@pytest.fixture
def store(tmp_path: Path) -> PrefixStore:
    return PrefixStore(tmp_path, "model", "settings")


def test_what_was_put_is_got(store: PrefixStore, tmp_path: Path) -> None:
    assert store.get(IDS) is None
    assert store.put(IDS, state(7))
    assert store.get(IDS) == state(7)
    assert PrefixStore(tmp_path, "renamed", "settings").get(IDS) == state(7)
    assert store.get(IDS[:-1]) is None
    assert PrefixStore(tmp_path, "model", "other settings").get(IDS) is None
    (entry,) = prefixes.entries(tmp_path)
    assert (entry.model, entry.tokens) == ("model", 4)
    assert entry.bytes == entry.path.stat().st_size


def test_any_flipped_bit_and_any_cut_is_noticed_and_the_file_removed(
    store: PrefixStore, tmp_path: Path
) -> None:
    store.put(IDS, state(7, 40))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    broken = [whole[:n] for n in range(len(whole))] + [whole + b"x"]
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 0x10
        broken.append(bytes(flipped))
    for content in broken:
        path.write_bytes(content)
        assert store.get(IDS) is None
        assert not path.exists()


def test_a_state_under_anothers_name_is_refused(store: PrefixStore, tmp_path: Path) -> None:
    store.put(IDS, state(7))
    (path,) = tmp_path.iterdir()
    store.put([9], state(9))
    (other,) = set(tmp_path.iterdir()) - {path}
    os.replace(path, other)
    assert store.get([9]) is None


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    store = PrefixStore(tmp_path, "model", "settings", max_bytes=3500)
    for number in range(3):
        store.put([number], state(number))
        (newest,) = (e.path for e in prefixes.entries(tmp_path) if e.used > time.time() - 500)
        os.utime(newest, (time.time() - 1000 + number,) * 2)
    store.get([0])
    store.put([3], state(3))
    assert [store.get([number]) is not None for number in range(4)] == [True, False, True, True]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3500
    assert not store.put([4], state(4, 4000))


def test_what_a_killed_process_left_is_removed_in_time(store: PrefixStore, tmp_path: Path) -> None:
    old, new = tmp_path / ".writing-old", tmp_path / ".writing-new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    store.put(IDS, state(7))
    assert not old.exists()
    assert new.exists()
    assert prefixes.clear(tmp_path) == 2
    assert list(tmp_path.iterdir()) == []


def test_other_files_in_the_folder_are_left_alone(store: PrefixStore, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "empty.prefix").write_bytes(b"")
    store.put(IDS, state(7))
    assert len(prefixes.entries(tmp_path)) == 1
    prefixes.clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_full_disk_is_no_error_and_leaves_nothing(
    store: PrefixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not store.put(IDS, state(7))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = PrefixStore(tmp_path / "file" / "prefixes", "model", "settings")
    assert store.problem() is not None
    assert not store.put(IDS, state(7))
    assert store.get(IDS) is None
    assert prefixes.entries(tmp_path / "nowhere") == []
    assert prefixes.clear(tmp_path / "nowhere") == 0


def _write_often(folder: Path, fill: int) -> None:
    store = PrefixStore(folder, "model", "settings", max_bytes=400_000)
    for number in range(60):
        store.put(IDS, state(fill, 100_000))
        found = store.get(IDS)
        assert found is None or found in (state(1, 100_000), state(2, 100_000))
        store.put([fill, number], state(fill, 100_000))


def test_two_processes_may_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(tmp_path, fill)) for fill in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert all(path.suffix == ".prefix" for path in tmp_path.iterdir())


def test_where_prefixes_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALREACT_CACHE", str(tmp_path))
    assert prefixes.folder() == tmp_path / "prefixes"
    monkeypatch.setenv("LOCALREACT_CACHE", "")
    assert prefixes.folder() is None
    monkeypatch.delenv("LOCALREACT_CACHE")
    folder = prefixes.folder()
    assert folder is not None
    assert folder.parts[-2:] == ("localreact", "prefixes")

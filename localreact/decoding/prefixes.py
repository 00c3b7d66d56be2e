"""Evaluated openings kept on disk, so that the next process needn't read its system prompt again.

A file is 8 bytes of magic, a SHA-256, and what that is over: the length of a JSON header in 4 bytes, the
header, the state as llama.cpp gives it. The hash is ours because llama.cpp loads flipped bytes without a
word. Files are worth nothing but time: any of them may be deleted whenever.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

MAGIC = b"LRprefx1"
SUFFIX = ".prefix"
MAX_BYTES = 512 * 2**20
_TEMPORARY = ".writing-"
_ABANDONED_S = 3600.0
_HEADER_MAX = 4096


def folder() -> Path | None:
    """Where prefixes are kept: under $LOCALREACT_CACHE, or the user's cache folder. None where that
    variable is set and empty: then nothing is kept."""
    chosen = os.environ.get("LOCALREACT_CACHE")
    if chosen == "":
        return None
    base = Path(chosen) if chosen else platformdirs.user_cache_path("localreact", appauthor=False)
    return base / "prefixes"


@dataclass(frozen=True)
class Entry:
    path: Path
    model: str
    tokens: int
    bytes: int
    used: float
    """When it was last read or written, in seconds since the epoch."""


class PrefixStore:
    """The prefixes of one model under one set of settings. No method raises for what is wrong with the
    disk or a file; a file that isn't what it should be is removed.

    `settings` is everything besides the tokens that makes a state what it is; `model` is for people.
    """

    def __init__(self, where: Path, model: str, settings: str, max_bytes: int = MAX_BYTES) -> None:
        self._where = where
        self._model = model
        self._settings = settings
        self._max_bytes = max_bytes

    def problem(self) -> str | None:
        """Why nothing can be kept, if that is so."""
        try:
            self._where.mkdir(parents=True, exist_ok=True)
            if not os.access(self._where, os.W_OK):
                return f"{self._where} can't be written"
        except OSError as error:
            return f"{self._where} can't be used: {error.strerror}"
        return None

    def get(self, ids: Sequence[int]) -> memoryview | None:
        """The state after these tokens, if it is kept."""
        key = self._key(ids)
        path = self._where / f"{key}{SUFFIX}"
        try:
            content = bytearray(path.stat().st_size)
            with path.open("rb", buffering=0) as file:
                whole = file.readinto(content) == len(content)
        except OSError:
            return None
        start = len(MAGIC) + 32
        body = memoryview(content)[start:]
        if whole and content[: len(MAGIC)] == MAGIC:
            header = _header(body)
            if (
                header is not None
                and header.get("key") == key
                and hashlib.sha256(body).digest() == content[len(MAGIC) : start]
            ):
                with suppress(OSError):
                    os.utime(path)
                return body[4 + struct.unpack_from("<I", body)[0] :]
        with suppress(OSError):
            path.unlink()
        return None

    def put(self, ids: Sequence[int], state: memoryview) -> bool:
        """Keep a state; True where it was. Two processes may write the same: either file is whole."""
        key = self._key(ids)
        header = json.dumps({"key": key, "model": self._model, "tokens": len(ids)}).encode()
        head = struct.pack("<I", len(header)) + header
        if len(header) > _HEADER_MAX or len(state) > self._max_bytes:
            return False
        digest = hashlib.sha256(head)
        digest.update(state)
        temporary: Path | None = None
        try:
            self._where.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=self._where)
            temporary = Path(name)
            with open(descriptor, "wb") as file:
                for part in (MAGIC, digest.digest(), head, state):
                    file.write(part)
            os.replace(temporary, self._where / f"{key}{SUFFIX}")
        except OSError:  # a full disk, no right to write, a file in use
            if temporary is not None:
                with suppress(OSError):
                    temporary.unlink()
            return False
        _prune(self._where, self._max_bytes)
        return True

    def _key(self, ids: Sequence[int]) -> str:
        digest = hashlib.sha256(f"{self._settings}\n".encode())
        digest.update(struct.pack(f"<{len(ids)}i", *ids))
        return digest.hexdigest()[:40]


def entries(where: Path) -> list[Entry]:
    """What is kept, the latest used first. Files that aren't prefixes are left out."""
    found = []
    for path, status in _files(where, SUFFIX):
        try:
            with path.open("rb") as file:
                head = file.read(len(MAGIC) + 32 + 4 + _HEADER_MAX)
        except OSError:
            continue
        header = _header(memoryview(head)[len(MAGIC) + 32 :]) if head.startswith(MAGIC) else None
        if header is not None:
            model, tokens = str(header.get("model")), header.get("tokens")
            if isinstance(tokens, int):
                found.append(Entry(path, model, tokens, status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: entry.used, reverse=True)


def clear(where: Path) -> int:
    """Remove all prefixes; how many files went.

    Raises:
        OSError: one can't be removed.
    """
    removed = 0
    for path, _ in [*_files(where, SUFFIX), *_files(where, "", _TEMPORARY)]:
        path.unlink(missing_ok=True)
        removed += 1
    return removed


def _header(body: memoryview) -> dict[str, object] | None:
    if len(body) < 4:
        return None
    (length,) = struct.unpack_from("<I", body)
    if length > min(_HEADER_MAX, len(body) - 4):
        return None
    try:
        header = json.loads(bytes(body[4 : 4 + length]))
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) else None


def _files(where: Path, suffix: str, prefix: str = "") -> Iterator[tuple[Path, os.stat_result]]:
    try:
        names = sorted(os.listdir(where))
    except OSError:
        return
    for name in names:
        if name.endswith(suffix) and name.startswith(prefix):
            with suppress(OSError):
                yield where / name, (where / name).stat()


def _prune(where: Path, max_bytes: int) -> None:
    """Remove the least recently used until the rest fits, and what a killed process left half written."""
    kept = 0
    for path, status in sorted(_files(where, SUFFIX), key=lambda each: each[1].st_mtime, reverse=True):
        kept += status.st_size
        if kept > max_bytes:
            with suppress(OSError):
                path.unlink()
    for path, status in _files(where, "", _TEMPORARY):
        if time.time() - status.st_mtime > _ABANDONED_S:
            with suppress(OSError):
                path.unlink()

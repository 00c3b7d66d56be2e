"""What a tool returned, as plain values and as text."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sized
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import islice
from typing import Any

from pydantic import BaseModel

MOST_ITEMS = 1000
"""Items taken of what has no length of its own, such as a generator: it may have no end."""

MOST_CHARACTERS = 16_000_000
"""Characters of a result that are kept, in memory and in traces."""

_DEEPEST = 50
_MORE_ITEMS = f"[stopped after {MOST_ITEMS} items]"


def as_text(value: Any) -> str:
    """What a tool returned, as text for a model: strings as they are, the rest as JSON.

    More than MOST_CHARACTERS are cut, with a mark.
    """
    if value is None:
        return "done (no result)"
    value = plain(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > MOST_CHARACTERS:
        left_out = len(text) - MOST_CHARACTERS
        text = f"{text[:MOST_CHARACTERS]} … [{left_out} more characters were not kept]"
    return text


def plain(value: Any, depth: int = 0) -> Any:
    """The value made of what JSON knows. Not-a-number and infinities become text, bytes are read as
    UTF-8, sets are sorted where they can be, and what nests too deeply (or in itself) is named."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if depth > _DEEPEST:
        return f"[{type(value).__name__}, nested too deeply]"
    if isinstance(value, BaseModel):
        return plain(value.model_dump(mode="json"), depth + 1)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name), depth + 1) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, Enum):
        return plain(value.value, depth + 1)
    if hasattr(value, "tolist"):  # arrays and their numbers
        return plain(value.tolist(), depth + 1)
    if isinstance(value, Iterable):
        return [plain(each, depth + 1) for each in _items(value)]
    return str(value)


def materialised(value: Any) -> Any:
    """The value, with what can be gone through only once as a list."""
    return list(_items(value)) if isinstance(value, Iterator) else value


async def collected(items: AsyncIterator[Any]) -> list[Any]:
    """What an asynchronous generator gives, up to MOST_ITEMS."""
    found: list[Any] = []
    async for item in items:
        if len(found) == MOST_ITEMS:
            return [*found, _MORE_ITEMS]
        found.append(item)
    return found


def _items(value: Iterable[Any]) -> Iterable[Any]:
    if isinstance(value, set | frozenset):
        try:
            return sorted(value)
        except TypeError:
            return value
    return value if isinstance(value, Sized) else _up_to_most(value)


def _up_to_most(value: Iterable[Any]) -> Iterator[Any]:
    items = iter(value)
    yield from islice(items, MOST_ITEMS)
    for _ in items:
        yield _MORE_ITEMS
        return

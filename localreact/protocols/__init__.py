"""Protocols: the format of one model turn. What to say, what to accept, how to read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from localreact.errors import UsageError
from localreact.protocols.base import Protocol
from localreact.protocols.bracket import BracketProtocol
from localreact.protocols.call import CallProtocol
from localreact.protocols.json import JsonProtocol
from localreact.protocols.text import TextProtocol

PROTOCOLS: dict[str, Callable[..., Protocol]] = {
    "json": JsonProtocol,
    "text": TextProtocol,
    "bracket": BracketProtocol,
    "call": CallProtocol,
}


def protocol(name: str, spelling: Mapping[str, Any] | None = None) -> Protocol:
    """A protocol by its name, in a model card's spelling.

    Raises:
        UsageError: no such protocol, or no such spelling of it.
    """
    if name not in PROTOCOLS:
        raise UsageError(f"there is no protocol {name!r}", f"Protocols: {', '.join(PROTOCOLS)}.")
    try:
        return PROTOCOLS[name](**(spelling or {}))
    except TypeError as error:
        raise UsageError(f"protocol {name!r} has no such spelling: {error}") from error


__all__ = [
    "PROTOCOLS",
    "BracketProtocol",
    "CallProtocol",
    "JsonProtocol",
    "Protocol",
    "TextProtocol",
    "protocol",
]

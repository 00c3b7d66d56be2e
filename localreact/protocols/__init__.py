"""Protocols: the format of one model turn. What to say, what to accept, how to read it."""

from __future__ import annotations

from collections.abc import Mapping

from localreact.errors import UsageError
from localreact.protocols.base import Protocol
from localreact.protocols.json import JsonProtocol


def protocol(name: str, spelling: Mapping[str, object] | None = None) -> Protocol:
    """A protocol by its name, in a model card's spelling.

    Raises:
        UsageError: no such protocol, or no such spelling of it.
    """
    if name != "json":
        raise UsageError(f"there is no protocol {name!r}", "Protocols: json.")
    try:
        return JsonProtocol(**(spelling or {}))  # type: ignore[arg-type]  # checked by the call itself
    except TypeError as error:
        raise UsageError(f"protocol {name!r} has no such spelling: {error}") from error


__all__ = ["JsonProtocol", "Protocol", "protocol"]

"""What a server is started with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localreact.tools import Tool

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Caps:
    """Beyond these a request is the client's fault: 413 for bytes, 431 for headers, 422 for the others."""

    body_bytes: int = 4 << 20
    header_bytes: int = 32 << 10
    messages: int = 2000
    tools: int = 128
    schema_bytes: int = 64 << 10
    """Of one tool, or of the answer, as JSON."""

    schema_depth: int = 32
    stops: int = 16
    choices: int = 16


@dataclass(frozen=True, slots=True)
class Settings:
    """`queue` requests wait beside the `parallel` ones that are being served; more are sent away (429).

    Args:
        host, port: where to listen. Anywhere but on this machine a key is needed.
        api_key: what clients have to show as a bearer token; empty: nothing.
        hosts: names by which clients may call the server, besides the host it listens on and this machine's.
        origins: of pages elsewhere that may ask (`https://host:port`, in small letters).
        max_tokens: of a reply whose client doesn't say.
        request_seconds: for a request, waiting included.
        compile_seconds: for the grammar of a request.
        shutdown_seconds: for requests under way, when the server is asked to stop.
        tools: the server's own, for `/v1/runs`; without any there are no runs.
        allow_effects: runs may call those that change something, and nobody is asked.
        caps: what a request may hold.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    api_key: str = ""
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    parallel: int = 8
    queue: int = 32
    max_tokens: int = 1024
    request_seconds: float = 600.0
    compile_seconds: float = 10.0
    shutdown_seconds: float = 10.0
    tools: Sequence[Tool] = ()
    allow_effects: bool = False
    caps: Caps = Caps()

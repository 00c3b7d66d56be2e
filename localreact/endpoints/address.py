"""Addresses of servers: `KIND:URL#MODEL`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from localreact.errors import UsageError

KINDS = ("llama-server", "openai", "ollama", "sglang", "tgi")
FORMS = """A model is given as
  NAME or FILE.gguf                       in process
  llama-server:http://host:8080           llama.cpp's server
  openai:http://host:8000/v1#MODEL        vLLM, LM Studio and others with /v1/completions
  ollama:http://host:11434#MODEL
  sglang:http://host:30000
  tgi:http://host:8080
Several servers of one kind with the same model: URLs with commas between them."""

_ADDRESS = re.compile(rf"(?:{'|'.join(KINDS)}):|[A-Za-z][A-Za-z0-9+.-]+:|.*://", re.I)


@dataclass(frozen=True)
class Address:
    kind: str
    url: str
    model: str = ""


def looks_like_address(text: str) -> bool:
    """Whether this is an address, well formed or not, rather than a name or a path (`C:\\x` is a path)."""
    return _ADDRESS.match(text) is not None


def parse_addresses(text: str) -> list[Address]:
    """The addresses, one for each replica.

    Raises:
        UsageError: not an address; the hint lists the forms.
    """
    kind, _, rest = text.partition(":")
    if kind not in KINDS or rest.startswith("//"):
        raise UsageError(f"{_shown(text)!r} doesn't say what kind of server it is", FORMS)
    urls, _, model = rest.partition("#")
    return [
        Address(kind, _url(kind, url.strip().removeprefix(f"{kind}:"), text), model.strip())
        for url in urls.split(",")
    ]


def _url(kind: str, url: str, text: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{_shown(text)!r} is no address: {error}", FORMS) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"{_shown(text)!r} is no address: a URL begins with http:// and a host", FORMS)
    if parts.username or parts.password or parts.query:
        raise UsageError(
            "credentials and queries don't belong in an address: it stands in traces",
            "Put the key into the environment variable LOCALREACT_API_KEY.",
        )
    path = parts.path.rstrip("/")
    if kind == "openai" and not path:
        path = "/v1"
    return SplitResult(parts.scheme, parts.netloc, path, "", "").geturl()


def _shown(text: str) -> str:
    """An address without what may be a password."""
    return re.sub(r"//[^/@\s]*@", "//…@", text)

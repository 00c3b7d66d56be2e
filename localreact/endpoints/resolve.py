"""From what people write after -m to an endpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from localreact.endpoints import probe
from localreact.endpoints.address import Address, looks_like_address, parse_addresses
from localreact.endpoints.base import Endpoint
from localreact.endpoints.cards import cards
from localreact.endpoints.dialect import Dialect
from localreact.endpoints.http import Patience, Transport
from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.llama_server import LlamaServer
from localreact.endpoints.ollama import Ollama
from localreact.endpoints.openai_text import OpenAIText
from localreact.endpoints.replicas import ReplicaEndpoint
from localreact.endpoints.server import ServerEndpoint
from localreact.endpoints.sglang import SGLang
from localreact.endpoints.tgi import TGI
from localreact.errors import MissingPartError, UsageError
from localreact.types import Sampling

DEFAULT_MODEL = "smollm2"
DEFAULT_ENGINE = "llguidance"


def default_model() -> str:
    """The model where none is named: LOCALREACT_MODEL, or the small one that is shipped."""
    return os.environ.get("LOCALREACT_MODEL") or DEFAULT_MODEL


def open_endpoint(
    model: str | os.PathLike[str] | Endpoint | None = None,
    n_ctx: int | None = None,
    n_threads: int | None = None,
    engine: str = DEFAULT_ENGINE,
    deterministic: bool = False,
    chat_template: str | os.PathLike[str] | None = None,
    gpu_layers: int = 0,
    parallel: int | None = None,
) -> Endpoint:
    """An endpoint for the name of a model card (`smollm2`), the path of a GGUF file, or the address of
    a server (`address.FORMS`), which is probed for what it enforces. One that is given comes back as it is.

    `chat_template` is a file with a Jinja template, instead of the model's own. `gpu_layers` of a model in
    process are evaluated by a GPU; -1 for all (see `LlamaEndpoint`); `parallel` says how many of its
    completions go on at a time.

    Raises:
        UsageError: a broken address, an engine or GPU layers for a server, or an endpoint that should be
            deterministic and isn't.
        MissingPartError: no such model here, or a package that it needs is missing.
        ModelError: the file can't be loaded.
        EndpointError: the server can't be reached, or isn't of that kind.
    """
    if model is not None and not isinstance(model, str | os.PathLike):
        return _deterministic(model) if deterministic else model
    template = None if chat_template is None else read_template(Path(chat_template))
    model = default_model() if model is None else model
    if isinstance(model, str) and looks_like_address(model) and not Path(model).exists():
        if gpu_layers:
            raise UsageError(
                "GPU layers are for models in process", "A server is told of its GPU when it is started."
            )
        servers = _open_servers(parse_addresses(model), n_ctx, engine, template)
        return _deterministic(servers) if deterministic else servers
    options: dict[str, Any] = {
        "deterministic": deterministic,
        "chat_template": template,
        "gpu_layers": gpu_layers,
    }
    if parallel is not None:
        options["parallel"] = parallel
    card = cards().get(str(model))
    known = card if card and card.package else None
    return LlamaEndpoint(model_path(str(model)), known, n_ctx, n_threads, engine, **options)


def check_model(model: str) -> None:
    """What can be said of a model's name or address before it is opened.

    Raises:
        UsageError: a broken address.
        MissingPartError: no such model here, or a package that it needs is missing.
    """
    if looks_like_address(model) and not Path(model).exists():
        parse_addresses(model)
    else:
        model_path(model)


def check_sampling(endpoint: Endpoint, sampling: Sampling) -> None:
    """
    Raises:
        UsageError: a way to choose tokens that the endpoint's server doesn't have.
    """
    if isinstance(endpoint, ServerEndpoint | ReplicaEndpoint):
        endpoint.check_sampling(sampling)


def _deterministic(endpoint: Endpoint) -> Endpoint:
    if not getattr(endpoint, "deterministic", False):
        raise UsageError(
            f"{endpoint.name} isn't deterministic",
            "Only models in process are: LlamaEndpoint(…, deterministic=True).",
        )
    return endpoint


def open_server(
    address: Address, n_ctx: int | None = None, template: str | None = None, patience: Patience | None = None
) -> ServerEndpoint:
    """One server, not probed.

    Raises:
        EndpointError: it can't be reached, or isn't of that kind.
    """
    transport = Transport(address.url, _key(address.kind), patience)
    try:
        return ServerEndpoint(_dialect(address, transport, n_ctx), n_ctx, template)
    except BaseException:
        transport.close()
        raise


def _open_servers(
    addresses: list[Address], n_ctx: int | None, engine: str, template: str | None
) -> ServerEndpoint | ReplicaEndpoint:
    if engine not in (DEFAULT_ENGINE, "free"):
        raise UsageError(
            f"the engine {engine!r} is for models in process",
            "A server enforces grammars itself; engine 'free' asks it for none.",
        )
    opened: list[ServerEndpoint] = []
    patience = Patience(tries=2) if len(addresses) > 1 else None  # another one is there to turn to
    try:
        for address in addresses:
            opened.append(endpoint := open_server(address, n_ctx, template, patience))
            if engine != "free":
                probe.settle(endpoint)
        return opened[0] if len(opened) == 1 else ReplicaEndpoint(opened)
    except BaseException:
        for endpoint in opened:
            endpoint.close()
        raise


def _dialect(address: Address, transport: Transport, n_ctx: int | None) -> Dialect:
    match address.kind:
        case "llama-server":
            return LlamaServer(transport, address.model)
        case "ollama":
            return Ollama(transport, address.model, n_ctx)
        case "sglang":
            return SGLang(transport, address.model)
        case "tgi":
            return TGI(transport, address.model)
        case _:
            return OpenAIText(transport, address.model)


def _key(kind: str) -> str | None:
    """The API key, from the environment only."""
    key = os.environ.get("LOCALREACT_API_KEY")
    return key or (os.environ.get("OPENAI_API_KEY") if kind == "openai" else None)


def model_path(model: str) -> Path:
    """The file of a model in process, by its card's name or its path.

    Raises:
        MissingPartError: no such model here, or a package that it needs is missing.
    """
    card = cards().get(model)
    if card and card.package:
        return card.path()
    path = Path(model).expanduser()
    if not path.exists():
        names = ", ".join(sorted(name for name, each in cards().items() if each.package))
        raise MissingPartError(
            f"there is no model {model!r}: no file of that name, and no model card",
            f"Give the path of a GGUF file, an address (llama-server:http://host:8080), or one of: {names}.",
        )
    return path


def read_template(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the chat template {path} can't be read: {error}", "Give a file with a Jinja template."
        ) from error

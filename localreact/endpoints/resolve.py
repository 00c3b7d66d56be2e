"""From what people write after -m to an endpoint."""

from __future__ import annotations

import os
from pathlib import Path

from localreact.endpoints.base import Endpoint
from localreact.endpoints.cards import cards
from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import MissingPartError, UsageError

DEFAULT_MODEL = "smollm2"


def open_endpoint(
    model: str | os.PathLike[str] | Endpoint,
    n_ctx: int | None = None,
    n_threads: int | None = None,
    engine: str = "llguidance",
    deterministic: bool = False,
) -> Endpoint:
    """An endpoint for the name of a model card (`smollm2`) or the path of a GGUF file. One that is given
    comes back as it is.

    Raises:
        UsageError: an endpoint that is given isn't deterministic, as it should be.
        MissingPartError: no such model here, or a package that it needs is missing.
        ModelError: the file can't be loaded.
    """
    if not isinstance(model, str | os.PathLike):
        if deterministic and not getattr(model, "deterministic", False):
            raise UsageError(
                f"{model.name} isn't deterministic", "Open it so: LlamaEndpoint(…, deterministic=True)."
            )
        return model
    card = cards().get(str(model))
    if card and card.package:
        return LlamaEndpoint(card.path(), card, n_ctx, n_threads, engine, deterministic=deterministic)
    path = Path(model).expanduser()
    if not path.exists():
        names = ", ".join(sorted(name for name, each in cards().items() if each.package))
        raise MissingPartError(
            f"there is no model {str(model)!r}: no file of that name, and no model card",
            f"Give the path of a GGUF file, or one of: {names}.",
        )
    return LlamaEndpoint(path, None, n_ctx, n_threads, engine, deterministic=deterministic)

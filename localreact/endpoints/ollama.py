"""Ollama's `/api/generate` in raw mode, with `format`. Source: docs/api.md in ollama/ollama."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from localreact.endpoints.dialect import About, Piece, Request, Spelling
from localreact.endpoints.http import QUICK, Transport
from localreact.errors import EndpointError, UsageError
from localreact.types import Limits, Prompt

MOST_CTX = 8192
"""Ollama sets memory aside for as much context as is asked for; more than this only on demand (--ctx)."""


class Ollama:
    """Its chat templates are Go's, and aren't read: give one in Jinja, or get the plain transcript."""

    kind = "ollama"
    penalises = True
    spellings = (Spelling("json_schema", "format", lambda text: {"format": json.loads(text)}),)

    def __init__(self, transport: Transport, model: str = "", n_ctx: int | None = None) -> None:
        self.transport = transport
        self._model = model
        self._n_ctx = n_ctx

    def about(self, limits: Limits | None) -> About:
        if not self._model:
            tags = self.transport.get("/api/tags", limits, QUICK)
            listed = tags.get("models") if isinstance(tags, Mapping) else None
            names = [str(each.get("name")) for each in listed or () if isinstance(each, Mapping)]
            raise UsageError(
                f"say which of Ollama's models: ollama:{self.transport.address}#MODEL",
                f"There are: {', '.join(names[:20]) or 'none; get one with: ollama pull NAME'}.",
            )
        shown = self.transport.post("/api/show", {"model": self._model}, limits, QUICK)
        info = shown.get("model_info") if isinstance(shown, Mapping) else None
        if not isinstance(info, Mapping):
            raise EndpointError(f"{self.transport.address} is no Ollama: /api/show says nothing of a model")
        lengths = [value for key, value in info.items() if key.endswith(".context_length")]
        length = lengths[0] if lengths and isinstance(lengths[0], int) else MOST_CTX
        # Without num_ctx Ollama cuts long prompts silently: so it is always told.
        self._n_ctx = min(length, self._n_ctx or MOST_CTX)
        details = shown.get("details") or {}
        kind = " ".join(str(details.get(key, "")) for key in ("parameter_size", "quantization_level"))
        return About(
            model=self._model,
            fingerprint=f"ollama {self._model} {kind}".strip(),
            n_ctx=self._n_ctx,
            names=(self._model.partition(":")[0],),
        )

    def alive(self, limits: Limits | None) -> None:
        self.transport.get("/api/tags", limits, QUICK)

    def ids(self, prompt: Prompt, limits: Limits | None) -> None:
        return None

    def request(self, request: Request) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        body = {
            "model": self._model,
            "prompt": request.prompt,
            "raw": True,
            "stream": True,
            # Older versions ignore these two; and cut silently, from the beginning, what is too long.
            "truncate": False,
            "shift": False,
            **request.constraint,
            "options": {
                "num_predict": request.max_tokens,
                "num_ctx": self._n_ctx,
                "stop": list(request.stops),
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "repeat_penalty": sampling.repeat_penalty,
                "repeat_last_n": sampling.repeat_last_n,
                "seed": request.seed,
            },
        }
        if request.logprobs:
            body["logprobs"] = True
        return "/api/generate", body

    def reader(self) -> Callable[[Mapping[str, Any]], Piece]:
        return _piece


def _piece(event: Mapping[str, Any]) -> Piece:
    text, logprobs = str(event.get("response") or ""), bool(event.get("logprobs"))
    if not event["done"]:
        return Piece(text, logprobs=logprobs)
    return Piece(
        text,
        stop="length" if event.get("done_reason") == "length" else "eog",
        prompt_tokens=event.get("prompt_eval_count"),
        generated=event.get("eval_count"),
        logprobs=logprobs,
    )

"""Hugging Face's text-generation-inference: `/generate_stream`. Source: its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from localreact.endpoints.dialect import About, Piece, Request, Spelling, short
from localreact.endpoints.http import QUICK, Transport
from localreact.errors import EndpointError
from localreact.types import Limits, Prompt, StopReason

_STOPS: dict[str, StopReason] = {
    "eos_token": "eog",
    "stop_sequence": "complete",
    "length": "length",
}
MAX_STOPS = 4  # the default of --max-stop-sequences; cutting is done here anyway


class TGI:
    kind = "tgi"
    penalises = False  # its repetition_penalty looks back on everything
    spellings = (
        Spelling(
            "json_schema", "json", lambda text: {"grammar": {"type": "json", "value": json.loads(text)}}
        ),
        Spelling("regex", "regex", lambda text: {"grammar": {"type": "regex", "value": text}}),
    )

    def __init__(self, transport: Transport, model: str = "") -> None:
        self.transport = transport
        self._model = model

    def about(self, limits: Limits | None) -> About:
        info = self.transport.get("/info", limits, QUICK)
        if not isinstance(info, Mapping) or not info.get("model_id"):
            raise EndpointError(
                f"{self.transport.address} is no TGI server: /info names no model",
                "For an OpenAI-style server write openai:http://host:port/v1#model",
            )
        model, total = str(info["model_id"]), info.get("max_total_tokens")
        revision = str(info.get("model_sha") or "")[:12]
        return About(
            model=self._model or model,
            fingerprint=f"tgi {info.get('version', '')} {short(model)} {revision}".strip(),
            n_ctx=total if isinstance(total, int) and total > 0 else None,
            names=(model,),
        )

    def alive(self, limits: Limits | None) -> None:
        self.transport.get("/info", limits, QUICK)

    def ids(self, prompt: Prompt, limits: Limits | None) -> None:
        return None

    def request(self, request: Request) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        parameters: dict[str, Any] = {
            **request.constraint,
            "max_new_tokens": request.max_tokens,
            "stop": list(request.stops[:MAX_STOPS]),
            "return_full_text": False,
            "details": True,
            "do_sample": sampling.temperature > 0,
            "seed": request.seed,
        }
        if sampling.temperature > 0:  # TGI refuses 0, and truncation values that switch off
            parameters["temperature"] = sampling.temperature
            if sampling.top_k:
                parameters["top_k"] = sampling.top_k
            if sampling.top_p < 1:
                parameters["top_p"] = sampling.top_p
        return "/generate_stream", {"inputs": request.prompt, "parameters": parameters, "stream": True}

    def reader(self) -> Callable[[Mapping[str, Any]], Piece]:
        return _piece


def _piece(event: Mapping[str, Any]) -> Piece:
    token, details = event["token"], event.get("details") or {}
    reason = details.get("finish_reason")
    return Piece(
        "" if token.get("special") else str(token["text"]),
        stop=_STOPS.get(str(reason), "eog") if reason else None,
        prompt_tokens=details.get("input_length"),
        generated=details.get("generated_tokens"),
        logprobs=token.get("logprob") is not None,
    )

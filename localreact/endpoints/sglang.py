"""SGLang's own `/generate`. Source: the sampling parameters and native APIs of SGLang's documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from localreact.endpoints.dialect import About, Piece, Request, Spelling, short
from localreact.endpoints.http import QUICK, Transport
from localreact.errors import EndpointError, ServerError
from localreact.types import Limits, Prompt


class SGLang:
    kind = "sglang"
    spellings = (
        Spelling("gbnf", "ebnf", lambda text: {"ebnf": text}),
        Spelling("json_schema", "json_schema", lambda text: {"json_schema": text}),
        Spelling("regex", "regex", lambda text: {"regex": text}),
    )

    def __init__(self, transport: Transport, model: str = "") -> None:
        self.transport = transport
        self._model = model
        self._incremental = False

    def about(self, limits: Limits | None) -> About:
        info = self.transport.get("/get_model_info", limits, QUICK)
        path = str(info.get("model_path", "")) if isinstance(info, Mapping) else ""
        if not path:
            raise EndpointError(
                f"{self.transport.address} is no SGLang server: /get_model_info names no model",
                "For an OpenAI-style server write openai:http://host:port/v1#model",
            )
        try:
            server = self.transport.get("/get_server_info", limits, QUICK)
        except ServerError:  # guarded by an admin key, or of another version
            server = {}
        self._incremental = bool(server.get("stream_output") or server.get("incremental_streaming_output"))
        length = server.get("context_length") or info.get("context_length")
        return About(
            model=self._model or path,
            fingerprint=f"sglang {server.get('version', '')} {short(path)}".replace("  ", " "),
            n_ctx=length if isinstance(length, int) and length > 0 else None,
            names=(path,),
        )

    def ids(self, prompt: Prompt, limits: Limits | None) -> None:
        return None

    def request(self, request: Request) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        parameters = {
            **request.constraint,
            "max_new_tokens": request.max_tokens,
            "stop": list(request.stops),
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
        }
        if sampling.temperature > 0:  # older servers know no seed, and refuse what they don't know
            parameters["sampling_seed"] = request.seed
        body: dict[str, Any] = {"text": request.prompt, "sampling_params": parameters, "stream": True}
        if request.logprobs:
            body["return_logprob"] = True
        return "/generate", body

    def reader(self) -> Callable[[Mapping[str, Any]], Piece]:
        """Each event has the whole text so far, unless the server was started to send increments."""
        so_far = ""

        def read(event: Mapping[str, Any]) -> Piece:
            nonlocal so_far
            text, meta = str(event["text"]), event["meta_info"]
            if not self._incremental:
                if not text.startswith(so_far):
                    raise ValueError("a text that doesn't continue the one before")
                so_far, text = text, text[len(so_far) :]
            reason = meta.get("finish_reason")
            kind = reason.get("type") if isinstance(reason, Mapping) else reason
            if kind == "abort":
                raise EndpointError(f"the server gave up: {reason.get('message', 'no reason given')}")
            return Piece(
                text,
                stop=None if not kind else "length" if kind == "length" else "eog",
                prompt_tokens=meta.get("prompt_tokens"),
                reused=meta.get("cached_tokens"),
                generated=meta.get("completion_tokens"),
                logprobs=bool(meta.get("output_token_logprobs")),
            )

        return read

"""SGLang's own `/generate`. Source: the sampling parameters and native APIs of SGLang's documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from localreact.endpoints.dialect import About, Piece, Request, Spelling, short
from localreact.endpoints.http import QUICK, Transport
from localreact.endpoints.tokenizing import Tokenizer
from localreact.errors import EndpointError, ServerError
from localreact.types import Limits, Prompt


class SGLang:
    kind = "sglang"
    penalises = False  # its repetition_penalty looks back on everything
    spellings = (
        Spelling("gbnf", "ebnf", lambda text: {"ebnf": text}),
        Spelling("json_schema", "json_schema", lambda text: {"json_schema": text}),
        Spelling("regex", "regex", lambda text: {"regex": text}),
    )

    def __init__(self, transport: Transport, model: str = "") -> None:
        self.transport = transport
        self._model = model
        self._incremental = False
        self._tokenizer: Tokenizer | None = None

    def about(self, limits: Limits | None) -> About:
        info = self._told("model_info", limits)
        path = str(info.get("model_path", "")) if isinstance(info, Mapping) else ""
        if not path:
            raise EndpointError(
                f"{self.transport.address} is no SGLang server: /model_info names no model",
                "For an OpenAI-style server write openai:http://host:port/v1#model",
            )
        try:
            server = self._told("server_info", limits)
        except ServerError:  # guarded by an admin key, or of another version
            server = {}
        self._incremental = bool(server.get("stream_output") or server.get("incremental_streaming_output"))
        told = self._find_tokenizer(limits)
        length = server.get("context_length") or info.get("context_length") or told
        return About(
            model=self._model or path,
            fingerprint=f"sglang {server.get('version', '')} {short(path)}".replace("  ", " "),
            n_ctx=length if isinstance(length, int) and length > 0 else None,
            names=(path,),
        )

    def alive(self, limits: Limits | None) -> None:
        self._told("model_info", limits)

    def _told(self, what: str, limits: Limits | None) -> Any:
        """Under its name of today, or its older one."""
        try:
            return self.transport.get(f"/{what}", limits, QUICK)
        except ServerError as error:
            if error.status != 404:
                raise
            return self.transport.get(f"/get_{what}", limits, QUICK)

    def _find_tokenizer(self, limits: Limits | None) -> object:
        """Use the server's, if it has one and takes its ids as a prompt. Gives the context that it tells."""
        tokenizer = Tokenizer(self.transport)
        if (answer := tokenizer.offered(limits)) is None:
            return None
        try:
            parameters = {"max_new_tokens": 1, "temperature": 0}
            body = {"input_ids": answer["tokens"], "sampling_params": parameters, "stream": False}
            self.transport.post("/generate", body, limits)
        except EndpointError:
            return None
        self._tokenizer = tokenizer
        return answer.get("max_model_len")

    def ids(self, prompt: Prompt, limits: Limits | None) -> list[int] | None:
        return None if self._tokenizer is None else self._tokenizer.ids(prompt, limits)

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
        kind = "text" if isinstance(request.prompt, str) else "input_ids"
        body: dict[str, Any] = {kind: request.prompt, "sampling_params": parameters, "stream": True}
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

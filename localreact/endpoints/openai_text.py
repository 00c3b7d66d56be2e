"""OpenAI-style `/v1/completions`: vLLM, SGLang, LM Studio, llama.cpp's Python server, and others.

Which of the many names for a grammar a server understands, if any, is found out by probing: most
servers take any field and ignore those that they don't know.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from localreact.endpoints.dialect import About, Piece, Request, Spelling, short
from localreact.endpoints.http import QUICK, Transport
from localreact.endpoints.tokenizing import Tokenizer
from localreact.errors import EndpointError, ServerError, UsageError
from localreact.types import Limits, Prompt, StopReason

_STOPS: dict[str, StopReason] = {"stop": "eog", "length": "length"}
MAX_STOPS = 4  # OpenAI's bound; cutting is done here anyway


class OpenAIText:
    kind = "openai"
    penalises = False  # OpenAI's API has none, and what servers have beside it differs
    spellings = (
        # vLLM since 0.11 (its docs, "structured outputs"), and before.
        Spelling(
            "gbnf", "structured_outputs.grammar", lambda text: {"structured_outputs": {"grammar": text}}
        ),
        Spelling("gbnf", "guided_grammar", lambda text: {"guided_grammar": text}),
        # llama.cpp's servers; SGLang.
        Spelling("gbnf", "grammar", lambda text: {"grammar": text}),
        Spelling("gbnf", "ebnf", lambda text: {"ebnf": text}),
        Spelling(
            "json_schema",
            "structured_outputs.json",
            lambda text: {"structured_outputs": {"json": json.loads(text)}},
        ),
        Spelling("json_schema", "guided_json", lambda text: {"guided_json": json.loads(text)}),
        Spelling(
            "json_schema",
            "response_format",
            lambda text: {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "turn", "strict": True, "schema": json.loads(text)},
                }
            },
        ),
        Spelling("json_schema", "json_schema", lambda text: {"json_schema": text}),
        Spelling("regex", "structured_outputs.regex", lambda text: {"structured_outputs": {"regex": text}}),
        Spelling("regex", "guided_regex", lambda text: {"guided_regex": text}),
        Spelling("regex", "regex", lambda text: {"regex": text}),
    )

    def __init__(self, transport: Transport, model: str = "") -> None:
        self.transport = transport
        self._model = model
        self._tokenizer: Tokenizer | None = None

    def about(self, limits: Limits | None) -> About:
        """From `/models`, where there is one; a model has to be named where several are served."""
        try:
            answer = self.transport.get("/models", limits, QUICK)
        except ServerError as error:
            if error.status not in (404, 405, 501) or not self._model:
                raise
            answer = {}
        listed = answer.get("data") if isinstance(answer, Mapping) else None
        models = [each for each in listed or () if isinstance(each, Mapping) and each.get("id")]
        names = [str(each["id"]) for each in models]
        if not self._model and len(names) != 1:
            shown = ", ".join(names[:10]) or "none that it names"
            raise UsageError(
                f"{self.transport.address} serves {len(names)} models; say which",
                f"Add it after a #: openai:{self.transport.address}#MODEL. There are: {shown}.",
            )
        self._model = self._model or names[0]
        own = next((each for each in models if each["id"] == self._model), {})
        if names and not own:
            raise EndpointError(
                f"{self.transport.address} has no model {self._model!r}",
                f"There are: {', '.join(names[:10])}.",
            )
        self._tokenizer = self._own_tokenizer(limits)
        length = own.get("max_model_len") or own.get("context_length") or own.get("max_context_length")
        by = str(own.get("owned_by") or "")
        return About(
            model=self._model,
            fingerprint=f"openai {by} {short(str(own.get('root') or self._model))}".replace("  ", " "),
            n_ctx=length if isinstance(length, int) and length > 0 else None,
            names=(str(own.get("root") or ""),),
        )

    def alive(self, limits: Limits | None) -> None:
        self.transport.get("/models", limits, QUICK)

    def _own_tokenizer(self, limits: Limits | None) -> Tokenizer | None:
        """The server's, if it has one (beside `/v1`, not in it) and takes its ids as a prompt."""
        tokenizer = Tokenizer(self.transport.at(self.transport.address.removesuffix("/v1")), self._model)
        if (answer := tokenizer.offered(limits)) is None:
            return None
        try:
            body = {"model": self._model, "prompt": answer["tokens"], "max_tokens": 1, "temperature": 0}
            self.transport.post("/completions", {**body, "stream": False}, limits)
        except EndpointError:
            return None
        return tokenizer

    def ids(self, prompt: Prompt, limits: Limits | None) -> list[int] | None:
        return None if self._tokenizer is None else self._tokenizer.ids(prompt, limits)

    def request(self, request: Request) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": request.prompt,
            **request.constraint,
            "max_tokens": request.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.stops:
            body["stop"] = list(request.stops[:MAX_STOPS])
        if sampling.top_k:  # beyond OpenAI's own, so only where asked for
            body["top_k"] = sampling.top_k
        if sampling.min_p:
            body["min_p"] = sampling.min_p
        if request.logprobs:
            body["logprobs"] = 1
        return "/completions", body

    def reader(self) -> Callable[[Mapping[str, Any]], Piece]:
        return _piece


def _piece(event: Mapping[str, Any]) -> Piece:
    usage = event.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    choices = event.get("choices") or ()
    choice = choices[0] if choices else {}
    reason = choice.get("finish_reason")
    return Piece(
        str(choice.get("text") or ""),
        stop=_STOPS.get(str(reason), "eog") if reason else None,
        prompt_tokens=usage.get("prompt_tokens"),
        reused=details.get("cached_tokens"),
        generated=usage.get("completion_tokens"),
        logprobs=bool(choice.get("logprobs")),
    )

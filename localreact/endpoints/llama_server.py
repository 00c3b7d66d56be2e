"""llama.cpp's own server: `/completion` with GBNF or a JSON Schema, and prompts as token ids.

Source: tools/server/README.md in ggml-org/llama.cpp.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from localreact.endpoints.dialect import About, Piece, Request, Spelling
from localreact.endpoints.http import QUICK, Transport
from localreact.endpoints.neutral import looks_special
from localreact.errors import EndpointError
from localreact.types import Limits, Prompt, Sampling, StopReason

_MARKUP = re.compile(r"(<[^<>\s]{1,60}>|\[/?[A-Z][A-Z_]{1,30}\])")
KEPT_TEXTS = 4096
_STOPS: dict[str, StopReason] = {"eos": "eog", "word": "complete", "limit": "length"}


class LlamaServer:
    kind = "llama-server"
    penalises = True
    spellings = (
        Spelling("gbnf", "grammar", lambda text: {"grammar": text}),
        Spelling("json_schema", "json_schema", lambda text: {"json_schema": json.loads(text)}),
    )

    def __init__(self, transport: Transport, model: str = "") -> None:
        self.transport = transport
        self._model = model
        self._known: dict[tuple[str, bool], tuple[int, ...]] = {}

    def about(self, limits: Limits | None) -> About:
        props = self.transport.get("/props", limits, QUICK)
        settings = props.get("default_generation_settings") if isinstance(props, Mapping) else None
        if not isinstance(settings, Mapping):
            raise EndpointError(
                f"{self.transport.address} is no llama-server: /props says nothing of a model",
                "For an OpenAI-style server write openai:http://host:port/v1#model",
            )
        path, name = str(props.get("model_path", "")), str(props.get("model_alias", ""))
        n_ctx = settings.get("n_ctx")
        return About(
            model=self._model or name or path.rsplit("/", 1)[-1],
            fingerprint=f"llama-server {props.get('build_info', '')} {path.rsplit('/', 1)[-1]}".strip(),
            n_ctx=n_ctx if isinstance(n_ctx, int) and n_ctx > 0 else None,
            template=props.get("chat_template") or None,
            bos=str(props.get("bos_token", "")),
            eos=str(props.get("eos_token", "")),
            names=(name, path),
        )

    def alive(self, limits: Limits | None) -> None:
        self.transport.get("/props", limits, QUICK)

    # --- prompts

    def ids(self, prompt: Prompt, limits: Limits | None) -> list[int]:
        """As in process: control tokens come from trusted text only, everything else is tokenized as
        plain text, in as few pieces as possible, and cut inside of what would still be a token by itself."""
        tokenize = functools.partial(self._tokenize, limits)
        bos = tokenize("", True)
        ids = list(bos)
        run: list[str] = []

        def flush() -> None:
            ids.extend(token for piece in run_pieces("".join(run)) for token in tokenize(piece, False))
            run.clear()

        def run_pieces(text: str) -> list[str]:
            pieces, start = [], 0
            for at, found in looks_special(text):
                if len(tokenize(found, False)) == 1:  # a token that the user's own text may not be
                    pieces.append(text[start : at + 1])
                    start = at + 1
            return [piece for piece in (*pieces, text[start:]) if piece]

        for segment in prompt.segments:
            if segment.tokens:
                flush()
                ids += segment.tokens
            elif segment.trusted:
                for part in _MARKUP.split(segment.text):
                    if _MARKUP.fullmatch(part) and len(control := tokenize(part, True)) == len(bos) + 1:
                        flush()
                        if not (bos and ids == list(bos) and control[-1] == bos[0]):  # templates write it too
                            ids.append(control[-1])
                    else:
                        run.append(part)
            else:
                run.append(segment.text)
        flush()
        return ids

    def _tokenize(self, limits: Limits | None, text: str, special: bool) -> tuple[int, ...]:
        """Ids of a text. `special` recognises control tokens and puts what begins a sequence before it."""
        if (known := self._known.get((text, special))) is not None:
            return known
        body = {"content": text, "parse_special": special, "add_special": special}
        answer = self.transport.post("/tokenize", body, limits)
        tokens = answer.get("tokens") if isinstance(answer, Mapping) else None
        if not isinstance(tokens, list) or not all(isinstance(each, int) for each in tokens):
            raise EndpointError(f"{self.transport.address}/tokenize answered without token ids")
        if len(self._known) >= KEPT_TEXTS:
            self._known.clear()
        self._known[text, special] = tuple(tokens)
        return tuple(tokens)

    # --- completing

    def request(self, request: Request) -> tuple[str, dict[str, Any]]:
        sampling = request.sampling
        # As in process: the penalty, truncation of the raw logits, then the temperature, and nothing else.
        samplers = ["top_k", "top_p", "min_p", "temperature"]
        body: dict[str, Any] = {
            "prompt": request.prompt,
            **request.constraint,
            "n_predict": request.max_tokens,
            "stop": list(request.stops),
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "seed": request.seed,
            "samplers": samplers if sampling.repeat_penalty == 1 else ["penalties", *samplers],
            **penalty(sampling),
            "cache_prompt": True,  # the server picks the slot that shares the longest prefix
            "return_tokens": True,
            "stream": True,
        }
        if self._model:
            body["model"] = self._model
        if request.logprobs:
            body["n_probs"] = 2
        return "/completion", body

    def reader(self) -> Callable[[Mapping[str, Any]], Piece]:
        return _piece


def penalty(sampling: Sampling) -> dict[str, float]:
    """The fields for it; the server's other penalties are off."""
    return {
        "repeat_penalty": sampling.repeat_penalty,
        "repeat_last_n": sampling.repeat_last_n,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


def _piece(event: Mapping[str, Any]) -> Piece:
    text = str(event["content"])
    logprobs = bool(event.get("completion_probabilities"))
    if not event["stop"]:
        # An id without text of its own is a control token, or a part of a character whose other ids
        # the server swallows: then none of this turn's ids are kept. The last one may end the turn.
        tokens = tuple(event.get("tokens") or ()) if text else None
        return Piece(text, tokens, logprobs=logprobs)
    timings, stop = event.get("timings") or {}, _STOPS.get(str(event.get("stop_type")), "eog")
    generated = event.get("tokens_predicted")
    if generated and stop == "eog":  # the token that ends a generation is no part of the turn
        generated -= 1
    return Piece(
        text,
        (),
        stop,
        prompt_tokens=event.get("tokens_evaluated"),
        reused=timings.get("cache_n"),
        generated=generated,
        logprobs=logprobs,
    )

"""Prompts as token ids, from the `/tokenize` that vLLM and SGLang share.

It always recognises special tokens, and can't be told not to. So what would be one, in text that isn't
trusted, is cut inside, and the pieces are tokenized apart: then their ids spell the same text, and none of
them is a special token. Source: vLLM's documentation of its tokenizer API, and SGLang's native APIs.
"""

from __future__ import annotations

from collections.abc import Mapping

from localreact.endpoints.http import QUICK, Transport
from localreact.endpoints.neutral import looks_special
from localreact.errors import EndpointError
from localreact.types import Limits, Prompt

SHORT = 100  # characters
KEPT_SHORT, KEPT_LONG = 4096, 16
MOST_ASKED = 64
"""Texts of one prompt about which the server is asked, and cuts in it. One with more is made as text, its
markers broken: a tool's result mustn't make thousands of requests."""


class Tokenizer:
    def __init__(self, transport: Transport, model: str = "") -> None:
        self._transport = transport
        self._model = {"model": model} if model else {}
        self._short: dict[tuple[str, bool], tuple[int, ...]] = {}
        self._long: dict[tuple[str, bool], tuple[int, ...]] = {}

    def offered(self, limits: Limits | None) -> Mapping[str, object] | None:
        """What the server says to a short text (`tokens`, and `max_model_len`), or None where it offers no
        such thing."""
        try:
            answer = self._transport.post("/tokenize", self._body("Hello", False), limits, QUICK)
        except EndpointError:
            return None
        tokens = _tokens(answer)
        return answer if tokens and answer.get("count") == len(tokens) else None

    def ids(self, prompt: Prompt, limits: Limits | None) -> list[int] | None:
        """None where too much in it looks like a special token.

        Raises:
            EndpointError: the server failed.
        """
        runs: list[tuple[bool, str]] = []
        for segment in prompt.segments:  # a token may come in several segments
            if runs and runs[-1][0] == segment.trusted:
                runs[-1] = (segment.trusted, runs[-1][1] + segment.text)
            else:
                runs.append((segment.trusted, segment.text))
        suspects = [(start, text) for start, run in _untrusted(runs) for start, text in _shifted(start, run)]
        asked = {text for _, text in suspects if (text, False) not in self._short}
        if len(asked) > MOST_ASKED:
            return None
        cuts = [start + 1 for start, text in suspects if len(self._tokenize(text, False, limits)) == 1]
        if len(cuts) > MOST_ASKED:
            return None
        whole = "".join(text for _, text in runs)
        ids: list[int] = []
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            ids += self._tokenize(whole[start:end], start == 0, limits)
        return ids

    def _tokenize(self, text: str, begins: bool, limits: Limits | None) -> tuple[int, ...]:
        """Ids of a text. One that begins a prompt gets what the model wants at its beginning."""
        known, most = (self._short, KEPT_SHORT) if len(text) <= SHORT else (self._long, KEPT_LONG)
        if (found := known.get((text, begins))) is not None:
            return found
        tokens = _tokens(self._transport.post("/tokenize", self._body(text, begins), limits))
        if tokens is None:
            raise EndpointError(f"{self._transport.address}/tokenize answered without token ids")
        if len(known) >= most:
            known.clear()
        known[text, begins] = tokens
        return tokens

    def _body(self, text: str, begins: bool) -> dict[str, object]:
        return {**self._model, "prompt": text, "add_special_tokens": begins}


def _untrusted(runs: list[tuple[bool, str]]) -> list[tuple[int, str]]:
    found, start = [], 0
    for trusted, text in runs:
        if not trusted:
            found.append((start, text))
        start += len(text)
    return found


def _shifted(start: int, run: str) -> list[tuple[int, str]]:
    return [(start + at, text) for at, text in looks_special(run)]


def _tokens(answer: object) -> tuple[int, ...] | None:
    tokens = answer.get("tokens") if isinstance(answer, Mapping) else None
    if not isinstance(tokens, list) or not all(isinstance(each, int) for each in tokens):
        return None
    return tuple(tokens)

"""Log-probabilities of tokens, as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localreact.serve.parts import Scored


def of_chat(scored: Sequence[Scored]) -> dict[str, Any] | None:
    """Of chat completions."""
    if not scored:
        return None
    content = []
    for each in scored:
        top = [_entry(piece, logprob) for piece, logprob in each.score.top]
        content.append({**_entry(each.score.piece, each.score.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def of_text(scored: Sequence[Scored]) -> dict[str, Any] | None:
    """Of text completions; offsets are in characters of the reply."""
    if not scored:
        return None
    return {
        "tokens": [_text(each.score.piece) for each in scored],
        "token_logprobs": [each.score.logprob for each in scored],
        "top_logprobs": [{_text(piece): logprob for piece, logprob in each.score.top} for each in scored],
        "text_offset": [each.at for each in scored],
    }


def _entry(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _text(piece), "logprob": logprob, "bytes": list(piece)}


def _text(piece: bytes) -> str:
    """A part of a character has no text of its own; `bytes` is exact."""
    return piece.decode("utf-8", "replace")

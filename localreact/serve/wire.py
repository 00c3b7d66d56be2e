"""What the dialects have in common on the wire."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from localreact.serve.answering import one_line
from localreact.serve.ask import ClientError, ToolChoice
from localreact.types import Sampling


class Strict(BaseModel):
    """A field that isn't known is refused by name: it would have changed the reply, perhaps."""

    model_config = ConfigDict(extra="forbid")


class Loose(BaseModel):
    """What replies hold comes back in histories, with fields that say nothing to a model."""

    model_config = ConfigDict(extra="ignore")


Temperature = Annotated[float, Field(ge=0, le=100)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=-1, le=1 << 30)]
Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(gt=0, le=100)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]
Most = Annotated[Count | None, BeforeValidator(lambda most: None if most == -1 else most)]
"""Tokens at most; -1 is no limit, as local servers have it."""

Alternatives = Annotated[int, Field(ge=0, le=20)]


def sampling(
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    repeat_penalty: float | None = None,
    seed: int | None = None,
) -> Sampling:
    """Greedy where nothing is said; without a seed (or with -1), no two requests draw alike."""
    return Sampling(
        temperature=temperature or 0.0,
        top_k=max(0, top_k or 0),
        top_p=1.0 if top_p is None else top_p,
        min_p=min_p or 0.0,
        seed=secrets.randbits(31) if seed in (None, -1) else seed % (1 << 31),
        repeat_penalty=repeat_penalty or 1.0,
    )


def stops_of(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings, as one or several are given; empty ones are none."""
    return tuple(filter(None, [stop] if isinstance(stop, str) else stop or ()))


def choice_of(given: str | None) -> ToolChoice:
    """OpenAI's words for a tool choice that names no tool."""
    known: dict[str | None, ToolChoice] = {"none": "none", "required": "required"}
    return known.get(given, "auto")


def refuse(asked: Mapping[str, object]) -> None:
    """
    Raises:
        ClientError: one of these fields asks for something.
    """
    for name, wanted in asked.items():
        if wanted:
            raise ClientError(400, f"{name} isn't supported here; leave it out", name, "unsupported")


def no_part(kind: str, at: str) -> ClientError:
    return ClientError(400, f"{kind!r} isn't supported here: only text is", at, "unsupported")


class Typed(Loose):
    """A part of a content. `text` is missing where it is something else."""

    type: str
    text: str | None = None


def text_of(content: str | Sequence[Typed] | None, kinds: Sequence[str], at: str) -> str:
    """The text of parts.

    Raises:
        ClientError: a part of another type.
    """
    if isinstance(content, str) or content is None:
        return content or ""
    for number, part in enumerate(content):
        if part.type not in kinds:
            raise no_part(part.type, f"{at}/{number}")
    return "\n".join(part.text or "" for part in content)


def event(data: Mapping[str, Any]) -> str:
    """A server-sent event that is named by its type."""
    return f"event: {data['type']}\ndata: {one_line(data)}\n\n"

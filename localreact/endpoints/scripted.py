"""An endpoint that replies from a list: for tests, for trying out a loop, for replaying a run."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from localreact.endpoints.base import CHECKED_ONLY
from localreact.endpoints.cards import GENERIC, ModelCard
from localreact.endpoints.chat import TRANSCRIPT, ChatFormat
from localreact.engines.free import cut_at_stop
from localreact.errors import EndpointError, GrammarError
from localreact.protocols.reasoning import split
from localreact.types import (
    Completion,
    Limits,
    Prompt,
    Reasoning,
    Sampling,
    Span,
    StopReason,
    TurnGrammar,
    Usage,
)


class ScriptedEndpoint:
    """Replies with fixed texts, one a turn, cut at stop strings; nothing is enforced, so the strict
    parser has to hold. Reasoning before a turn is set apart by its tags; no budget ends it.

    A reply that is an exception is raised instead. `prompts` collects what the endpoint was given.
    Tokens are counted as characters divided by four, rounded up.
    """

    languages: tuple[str, ...] = ()
    level = CHECKED_ONLY

    def __init__(
        self,
        replies: Iterable[str | BaseException],
        n_ctx: int = 1 << 20,
        card: ModelCard = GENERIC,
        reasoning: Reasoning = Reasoning(tokens=0),  # noqa: B008  (frozen)
    ) -> None:
        self._replies = iter(replies)
        self.name = "scripted"
        self.fingerprint = "scripted"
        self.chat: ChatFormat = TRANSCRIPT
        self.card = card
        self.reasoning: Reasoning | None = reasoning
        self._tags = reasoning
        self.n_ctx = n_ctx
        self.notices: list[str] = []
        self.prompts: list[Prompt] = []

    def count(self, prompt: Prompt) -> int:
        return _tokens(prompt.text)

    def check(self, grammar: TurnGrammar) -> None:
        raise GrammarError("the scripted endpoint enforces no grammar")

    def complete(
        self, prompt: Prompt, grammar: TurnGrammar | None, limits: Limits, sampling: Sampling, turn: int = 0
    ) -> Generator[Span, None, Completion]:
        self.prompts.append(prompt)
        try:
            reply = next(self._replies)
        except StopIteration:
            raise EndpointError("the script has no reply left") from None
        if isinstance(reply, BaseException):
            raise reply
        stop: StopReason = "eog"
        thinking, reply = split(reply, self._tags)
        reply = cut_at_stop(reply, limits.stops)
        if _tokens(reply) > limits.max_tokens:
            reply, stop = reply[: 4 * limits.max_tokens], "length"
        spans = [Span("sampled", thinking, reasoning=True)] if thinking else []
        spans.append(Span("sampled", reply))
        yield from spans
        usage = Usage(prompt=self.count(prompt), sampled=_tokens(reply), reasoning=_tokens(thinking))
        return Completion(reply, stop, spans=tuple(spans), usage=usage, reasoning=thinking)

    def close(self) -> None:
        """Nothing to free."""


def _tokens(text: str) -> int:
    return -(-len(text) // 4)

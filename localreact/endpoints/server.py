"""The endpoint of any server that completes text; what tells servers apart is in their dialects."""

from __future__ import annotations

import copy
import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import replace

from localreact.endpoints.answers import TOO_LONG
from localreact.endpoints.base import level_of
from localreact.endpoints.cards import ModelCard, card_named
from localreact.endpoints.chat import TRANSCRIPT, ChatFormat, from_template
from localreact.endpoints.dialect import About, Dialect, Received, Request, Spelling, short
from localreact.endpoints.http import StoppedError
from localreact.endpoints.neutral import markers_of, neutral_text
from localreact.endpoints.reasoning import PAIRS, reasoning_of
from localreact.engines.free import cut_at_stop
from localreact.errors import ContextOverflowError, EndpointError, GrammarError, ServerError, UsageError
from localreact.protocols.reasoning import closing, split
from localreact.types import (
    FREE_TEXT,
    Completion,
    Limits,
    Prompt,
    Reasoning,
    Sampling,
    Segment,
    Span,
    StopReason,
    Timings,
    TurnGrammar,
    Usage,
)

ASSUMED_CTX = 4096
BYTES_PER_TOKEN = 3  # a careful estimate for text; Chinese has 3 bytes a character and about a token
CHECK_TOKENS = 1
CHECKS_KEPT = 256
LONGEST_CHECK = 180.0  # seconds, with whatever waits before it on the server


class ServerEndpoint:
    """Many completions at once, each its own request.

    Nothing is enforced until `settle` has been told what the server was found to enforce (`probe.py`).

    Args:
        n_ctx: tokens of context, where the server doesn't tell or should use fewer.
        chat_template: a Jinja chat template, instead of the server's own.

    Raises:
        EndpointError: the server can't be reached, or doesn't answer as its kind does.
    """

    def __init__(self, dialect: Dialect, n_ctx: int | None = None, chat_template: str | None = None) -> None:
        self.dialect = dialect
        about = dialect.about(None)
        self.card: ModelCard = card_named(about.model, *about.names)
        self.model = about.model
        self.name = f"{dialect.kind}:{dialect.transport.address}#{short(about.model)}"
        self.fingerprint = about.fingerprint
        self.notices: list[str] = []
        self.chat = self._chat_format(about, chat_template)
        self.reasoning: Reasoning | None = None  # no server here closes it in time, so it isn't begun
        source = chat_template if chat_template is not None else self._known_template(about) or ""
        tags = reasoning_of({}, source, self.chat.user_to_model) or Reasoning(*PAIRS[0])
        if tags.opened:  # by the template: closed at once
            self.chat = replace(self.chat, user_to_model=self.chat.user_to_model + closing(tags))
        self.tags = tags
        """What a model's reasoning would stand between."""
        self.n_ctx = self._context(about, n_ctx)
        self.languages: tuple[str, ...] = ()
        self._spellings: dict[str, Spelling] = {}
        self._markers = markers_of(self.chat)
        self._checked: OrderedDict[TurnGrammar, None] = OrderedDict()
        self._lock = threading.Lock()
        self._estimate_until = 0.0

    @property
    def level(self) -> str:
        return level_of(self.languages)

    def settle(self, spellings: dict[str, Spelling]) -> None:
        """From now on ask for grammars so: a way for each language that the server enforces."""
        self._spellings = dict(spellings)
        self.languages = tuple(spellings)

    def keep(self, languages: Sequence[str]) -> None:
        """Use no other languages than these."""
        self.settle({each: self._spellings[each] for each in languages})

    def _known_template(self, about: About) -> str | None:
        """The server's, else the model card's."""
        return about.template or self.card.chat_template or None

    def _chat_format(self, about: About, given: str | None) -> ChatFormat:
        source = "the chat template given" if given is not None else f"the chat template of {about.model}"
        template = given if given is not None else self._known_template(about)
        if template is None:
            self.notices.append(
                f"{self.name} tells no chat template: prompts are a plain transcript "
                "(--chat-template FILE gives one)"
            )
            return TRANSCRIPT
        chat = from_template(template, bos=about.bos, eos=about.eos)
        if chat is None:
            self.notices.append(f"{source} can't be used: prompts are a plain transcript")
            return TRANSCRIPT
        return chat

    def _context(self, about: About, asked: int | None) -> int:
        if asked is not None:
            return min(asked, about.n_ctx or asked)
        if about.n_ctx is None:
            self.notices.append(
                f"{self.name} doesn't tell its context: {ASSUMED_CTX} tokens are assumed (or --ctx)"
            )
        return about.n_ctx or ASSUMED_CTX

    # --- prompts

    def count(self, prompt: Prompt) -> int:
        """Exact where the server has ids and answers within a second; never raises otherwise: what is
        wrong with the server is for the completion to say, under the run's limits."""
        ids = None
        if time.monotonic() >= self._estimate_until:
            try:
                ids = self.dialect.ids(prompt, Limits(0, deadline=time.monotonic() + 1))
            except EndpointError:
                self._estimate_until = time.monotonic() + 5
        return estimate(prompt.text) if ids is None else len(ids)

    def encode(self, prompt: Prompt, limits: Limits) -> tuple[str | list[int], int]:
        """What is sent for a prompt, and how many control markers were broken in it."""
        ids = self.dialect.ids(prompt, limits)
        return neutral_text(prompt, self._markers) if ids is None else (ids, 0)

    # --- completing

    def check_sampling(self, sampling: Sampling) -> None:
        """
        Raises:
            UsageError: the server can't choose tokens so.
        """
        if sampling.repeat_penalty != 1 and not self.dialect.penalises:
            raise UsageError(
                f"{self.name} can't be given a repeat_penalty of {sampling.repeat_penalty:g}: "
                f"{self.dialect.kind} has none that looks back on a number of tokens",
                "Leave it at 1, or use a model in process, a llama-server or Ollama.",
            )

    def check(self, grammar: TurnGrammar) -> None:
        with self._lock:
            if grammar in self._checked:
                self._checked.move_to_end(grammar)
                return
        limits = Limits(CHECK_TOKENS, deadline=time.monotonic() + LONGEST_CHECK)
        try:
            sent, _ = self.encode(Prompt((Segment("Hello", trusted=True),)), limits)
            stopped = self.read(self._request(sent, grammar, limits), limits, Received())
        except ServerError as error:
            if error.status in (400, 422, 500):
                raise GrammarError(
                    f"the server refuses the grammar of a turn: {error.message}",
                    "Simplify the tools' schemas, or go without a grammar (engine 'free'): checked only.",
                ) from error
            raise
        if stopped is not None:
            raise ServerError(
                f"{self.name} took longer than {LONGEST_CHECK:g} seconds for a token of a turn",
                "Is it overloaded, or the grammar too much for it?",
                status=503,
            )
        with self._lock:
            self._checked[grammar] = None
            while len(self._checked) > CHECKS_KEPT:
                self._checked.popitem(last=False)

    def complete(
        self, prompt: Prompt, grammar: TurnGrammar | None, limits: Limits, sampling: Sampling, turn: int = 0
    ) -> Generator[Span, None, Completion]:
        started = time.monotonic()
        try:
            sent, broken = self.encode(prompt, limits)
        except StoppedError as error:
            return Completion("", error.stopped)
        if isinstance(sent, list) and len(sent) >= self.n_ctx:
            raise ContextOverflowError(
                f"the prompt needs {len(sent)} tokens and the context holds {self.n_ctx}",
                "Give the server a larger context, or offer fewer tools.",
            )
        request = self._request(sent, grammar, limits, sampling, turn)
        received = Received()
        first: float | None = None
        stopped: StopReason | None
        streaming = self.stream(request, limits, received)
        while True:
            try:
                text = next(streaming)
            except StopIteration as end:
                stopped = end.value
                break
            first = first or time.monotonic()
            yield Span("sampled", text)
            if cut_at_stop(received.text, request.stops) != received.text:  # a server that knows no stops
                streaming.close()
                stopped = "complete"
                break
        return self._completion(sent, received, stopped, request, broken, (started, first))

    def _request(
        self,
        sent: str | list[int],
        grammar: TurnGrammar | None,
        limits: Limits,
        sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
        turn: int = 0,
    ) -> Request:
        self.check_sampling(sampling)
        return Request(
            prompt=sent,
            constraint=self._constraint(grammar),
            max_tokens=limits.max_tokens,
            stops=limits.stops
            if grammar in (None, FREE_TEXT)
            else (),  # a grammar's whitespace may spell one
            sampling=sampling,
            seed=(sampling.seed + 0x9E3779B1 * turn) % (1 << 31),
        )

    def stream(
        self, request: Request, limits: Limits, received: Received
    ) -> Generator[str, None, StopReason | None]:
        """The texts of a completion as they come, added up in `received`; returns which limit ended it.

        Raises:
            EndpointError: also where the stream ends without saying that the completion does.
            ContextOverflowError: the server says that the prompt is too long.
        """
        path, body = self.dialect.request(request)
        read = self.dialect.reader()
        events = self.dialect.transport.events(path, body, limits)
        stopped: StopReason | None
        try:
            while True:
                try:
                    piece = read(next(events))
                except StopIteration as end:
                    stopped = end.value
                    break
                except EndpointError as error:
                    if received.stop is not None:  # the turn is whole by the server's own word
                        stopped = None
                        break
                    if isinstance(error, ServerError) and error.status == TOO_LONG:
                        raise ContextOverflowError(error.message, error.hint) from error
                    raise
                except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
                    raise EndpointError(
                        f"{self.name} streamed an event of another shape than {self.dialect.kind} does: "
                        f"{type(error).__name__}: {error}",
                        "Is it a server of that kind, and of a current version?",
                    ) from error
                received.add(piece)
                if piece.text:
                    yield piece.text
        finally:
            events.close()
        if stopped is None and received.stop is None:
            raise EndpointError(
                f"{self.name} ended the stream in the middle of a turn: {len(received.text)} characters came",
                "Look at the server's log; nothing of this turn was acted on.",
            )
        return stopped

    def read(self, request: Request, limits: Limits, received: Received) -> StopReason | None:
        """`stream` to its end, for who wants the whole only."""
        streaming = self.stream(request, limits, received)
        while True:
            try:
                next(streaming)
            except StopIteration as end:
                stopped: StopReason | None = end.value
                return stopped

    def _constraint(self, grammar: TurnGrammar | None) -> dict[str, object]:
        if grammar == FREE_TEXT:
            return {}
        if grammar is None:
            if self.languages:
                raise GrammarError("this endpoint decodes under a grammar; engine='free' does without")
            return {}
        spelling = self._spellings.get(grammar.language)
        if spelling is None:
            raise GrammarError(
                f"{self.name} was not found to enforce {grammar.language}",
                f"It enforces: {', '.join(self.languages) or 'nothing'}.",
            )
        return dict(spelling.fields(grammar.text))

    def _completion(
        self,
        sent: str | list[int],
        received: Received,
        stopped: StopReason | None,
        request: Request,
        broken: int,
        times: tuple[float, float | None],
    ) -> Completion:
        text, reasoning = cut_at_stop(received.text, request.stops), ""
        if not request.constraint:  # a model may reason all the same
            reasoning, text = split(text, replace(self.tags, opened=False))
        prompt = received.prompt_tokens
        if prompt is None:
            prompt = len(sent) if isinstance(sent, list) else estimate(sent)
        generated = estimate(received.text) if received.generated is None else received.generated
        now, (started, first) = time.monotonic(), times
        whole = text == received.text and not self._markers.search(text)
        tokens = tuple(received.tokens or ()) if whole and isinstance(sent, list) else ()
        return Completion(
            text,
            stopped or received.stop or "eog",
            tokens=tokens,
            spans=(Span("sampled", text, tokens),),
            usage=Usage(prompt=prompt, reused=min(received.reused or 0, prompt), sampled=generated),
            timings=Timings(prompt_s=(first or now) - started, generate_s=now - (first or now)),
            reasoning=reasoning,
            neutralised=broken,
        )

    def without_grammars(self) -> ServerEndpoint:
        """The same server, asked for no grammar. Closing either closes both."""
        twin = copy.copy(self)
        twin.settle({})
        return twin

    def close(self) -> None:
        self.dialect.transport.close()


def estimate(text: str) -> int:
    """Tokens of a text, where nobody counts them."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)

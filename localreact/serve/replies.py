"""What is prepared for an Ask, and the replies that the model's text becomes, part by part."""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from localreact.endpoints.base import Endpoint
from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import ProtocolError
from localreact.protocols import Protocol
from localreact.protocols.base import mark_truncated, read_first
from localreact.serve.ask import Ask, Called
from localreact.serve.checked import check_text, check_turn
from localreact.serve.parts import (
    ArgumentsDelta,
    CallStarted,
    ContentDelta,
    Ended,
    Part,
    ReasoningDelta,
    Scored,
)
from localreact.serve.plain import PlainReader, StopFilter
from localreact.types import (
    FREE_TEXT,
    Completion,
    Finish,
    Prompt,
    Reasoning,
    ScoredSpan,
    Span,
    ToolCall,
    Turn,
    TurnGrammar,
    TurnSpec,
)


@dataclass(frozen=True)
class Prepared:
    """All that is needed to write replies to an Ask. Without `spec` the reply is plain text."""

    ask: Ask
    endpoint: Endpoint
    prompt: Prompt
    grammar: TurnGrammar | None
    max_tokens: int
    reasoning: int
    spec: TurnSpec | None = None
    protocol: Protocol | None = None
    notices: tuple[str, ...] = ()
    """What the grammar doesn't hold of the client's schemas, and so is checked when the reply is whole."""


class Reply:
    def __init__(self, prepared: Prepared, choice: int) -> None:
        self.prepared = prepared
        self.choice = choice
        self.reasoning = ""
        self.content = ""
        self._stops = StopFilter(prepared.ask.stops)

    @property
    def stopped_at(self) -> str | None:
        return self._stops.stopped_at

    def think(self, text: str) -> Iterator[Part]:
        if text:
            self.reasoning += text
            yield ReasoningDelta(text, self.choice)

    def say(self, text: str) -> Iterator[Part]:
        if text := self._stops.feed(text):
            yield self._said(text)

    def say_rest(self) -> Iterator[Part]:
        if text := self._stops.finish():
            yield self._said(text)

    def _said(self, text: str) -> ContentDelta:
        self.content += text
        return ContentDelta(text, self.choice, self.newly_scored())

    def newly_scored(self) -> tuple[Scored, ...]:
        """Tokens that begin in the content so far, and that no delta had yet."""
        return ()

    def ended(self, completion: Completion, cut: bool = False, **more: Any) -> Ended:
        stopped = self.stopped_at is None and (cut or completion.stop == "length")
        return Ended(
            "length" if stopped else "stop",
            self.content,
            self.reasoning,
            usage=completion.usage,
            timings=completion.timings,
            stopped_at=self.stopped_at,
            choice=self.choice,
            **more,
        )


class PlainReply(Reply):
    def __init__(self, prepared: Prepared, choice: int) -> None:
        super().__init__(prepared, choice)
        endpoint, chats = prepared.endpoint, prepared.grammar == FREE_TEXT and prepared.ask.prompt is None
        # A server's model may reason although nobody knows its tags.
        tags = endpoint.reasoning or (None if isinstance(endpoint, LlamaEndpoint) else Reasoning())
        self._reader = PlainReader(replace(tags, opened=False) if tags and chats else None)
        self._received = 0
        self._waiting: deque[Scored] = deque()
        """Tokens, and where they begin in all that was received."""
        self._scored: tuple[Scored, ...] = ()

    def feed(self, span: Span) -> Iterator[Part]:
        if isinstance(span, ScoredSpan):
            self._waiting.extend(Scored(score, self._received) for score in span.scores)
            self._received += len(span.text)
        reasoning, content = self._reader.feed(span.text)
        yield from self.think(reasoning)
        yield from self.say(content)

    def newly_scored(self) -> tuple[Scored, ...]:
        begin, new = self._reader.content_at, []
        while self._waiting and self._waiting[0].at < begin + len(self.content):
            token = self._waiting.popleft()
            if token.at >= begin:  # else it belongs to the reasoning
                new.append(replace(token, at=token.at - begin))
        self._scored += tuple(new)
        return tuple(new)

    def end(self, completion: Completion) -> Iterator[Part]:
        reasoning, content = self._reader.finish()
        yield from self.think(reasoning)
        yield from self.say(content)
        yield from self.say_rest()
        held, whole = self.prepared.ask.held, completion.stop != "length" and self.stopped_at is None
        if held is not None and held.kind == "json" and self.prepared.notices and whole:
            check_text(self.content, held.value)
        yield self.ended(completion, scored=self._scored)


class TurnReply(Reply):
    """Live where a grammar holds the turn: then it is sure to become one. Otherwise it is said once it was
    read as a whole."""

    def __init__(self, prepared: Prepared, choice: int) -> None:
        super().__init__(prepared, choice)
        assert prepared.protocol is not None
        assert prepared.spec is not None
        self._protocol, self._spec = prepared.protocol, prepared.spec
        self._reader = self._protocol.reader()
        self._live = prepared.grammar is not None
        self._verbatim = self._protocol.version.startswith(("react-json/", "react-text/"))
        self._id = f"call_{secrets.token_hex(12)}"
        self._name = ""
        self._arguments = ""
        self._thinks = False

    def feed(self, span: Span) -> Iterator[Part]:
        if not self._live:
            return
        fields = self._reader.feed(span.text)
        self._name += "".join(new for field, new in fields if field == "tool")
        for field, new in fields:
            if field == "thought":
                yield from self._think(new)
            elif field == "answer" and self._spec.answer_schema is None:
                yield from self.say(new)
            elif field == "arguments" and self._verbatim:
                yield from self._argue(new)

    def end(self, completion: Completion) -> Iterator[Part]:
        if completion.stop == "length" and self._live:
            yield from self.say_rest()
            yield self.ended(completion, cut=True)
            return
        if self.stopped_at is not None:
            yield self.ended(completion)
            return
        turn = self._turn(completion)
        if turn is None:
            yield self.ended(completion, cut=True)
            return
        if not self._live:
            yield from self._think(turn.thought)
        if isinstance(turn, ToolCall):
            yield from self._call(turn, completion)
        else:
            yield from self._answer(turn, completion)

    def _turn(self, completion: Completion) -> Turn | None:
        """None where it was cut."""
        spec, structured = self._spec, self._spec.answer_schema is not None
        if self._live:
            turn = mark_truncated(self._protocol.parse(completion.text, spec.tools, structured), spec)
        else:
            try:
                turn, _ = read_first(self._protocol, completion.text, spec.tools, structured)
            except ProtocolError as error:
                if completion.stop == "length":
                    return None
                raise ProtocolError(f"the model's reply was no turn: {error.message}", error.hint) from error
        if self.prepared.notices and not turn.truncated:
            check_turn(turn, self.prepared.ask, spec)
        return turn

    def _think(self, text: str) -> Iterator[Part]:
        if text and self.reasoning and not self._thinks:  # after the model's own reasoning
            text = f"\n\n{text}"
        self._thinks = True
        yield from self.think(text)

    def _argue(self, text: str) -> Iterator[Part]:
        if not self._arguments:
            yield CallStarted(self._id, self._name, self.choice)
        self._arguments += text
        yield ArgumentsDelta(text, self.choice)

    def _call(self, turn: ToolCall, completion: Completion) -> Iterator[Part]:
        self._name = turn.tool
        if turn.truncated:  # the deltas may have been sent; what they add up to is no call
            yield self.ended(completion, cut=True)
            return
        if not self._arguments:
            yield from self._argue(_dumps(turn.arguments))
        call = Called(self._id, turn.tool, self._arguments)
        yield replace(self.ended(completion), finish_reason="tool_calls", call=call)

    def _answer(self, turn: Finish, completion: Completion) -> Iterator[Part]:
        if self._spec.answer_schema is not None:
            yield from self.say(_dumps(turn.value))
        elif not self._live:
            yield from self.say(turn.answer or turn.missing or "")
        yield from self.say_rest()
        yield self.ended(completion, cut=bool(turn.truncated), evidence=turn.evidence)


def _dumps(value: Mapping[str, Any] | Any) -> str:
    return json.dumps(value, ensure_ascii=False)

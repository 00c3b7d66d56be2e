"""From an Ask to a prompt and a grammar, and from what the model writes to the parts of a reply. On threads:
nothing here awaits."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

from localreact import fitting
from localreact.endpoints.base import Endpoint
from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.reasoning import reasoning_budget
from localreact.errors import ContextOverflowError, GrammarError
from localreact.grammar.schema import all_enforceable
from localreact.protocols import PROTOCOLS, Protocol, protocol
from localreact.protocols.base import first_grammar
from localreact.serve import grammars
from localreact.serve.ask import Ask, Called, ClientError
from localreact.serve.history import plain_prompt, turn_prompt
from localreact.serve.parts import Ended, Part
from localreact.serve.replies import PlainReply, Prepared, TurnReply
from localreact.serve.schemas import closed_schema
from localreact.types import (
    FREE_TEXT,
    Completion,
    JsonSchema,
    Limits,
    Prompt,
    Segment,
    Source,
    ToolSpec,
    TurnSpec,
)

KEPT_TURNS = 1024
"""Calls whose turns are remembered as the model wrote them, so that the next prompt holds the same ids."""

LEAST_ROOM = 8
LONGEST_STRING = {"lark": 32_000}
"""In characters; other languages count no further than OTHERWISE."""
OTHERWISE = 2000
NOTHING_HELD = "nothing holds the model to a turn here: what it wrote is checked after the turn"


class Turns:
    """`max_tokens` holds for asks that say nothing."""

    def __init__(self, endpoint_for: Callable[[str | None], Endpoint], max_tokens: int) -> None:
        self._endpoint_for = endpoint_for
        self._max_tokens = max_tokens
        self._written: OrderedDict[str, tuple[str, Called, str, tuple[int, ...]]] = OrderedDict()
        self._lock = threading.Lock()

    # --- before the first byte

    def prepare(self, ask: Ask) -> Prepared:
        """
        Raises:
            ClientError, UsageError, GrammarError, ContextOverflowError: it can't be served so.
        """
        endpoint = self._endpoint_for(ask.engine)
        reasoning = reasoning_budget(endpoint, ask.reasoning_tokens)
        history = any(each.calls or each.role == "tool" for each in ask.messages)
        turn = ask.prompt is None and bool(ask.tools or ask.answer is not None or history or ask.cite)
        if turn and ask.held is not None:
            said = "a grammar of one's own goes with neither tools, nor their results, nor another schema"
            raise ClientError(400, said, ask.held.param)
        if ask.logprobs is not None:
            _check_scored(endpoint, turn)
        if turn:
            return self._turn(ask, endpoint, reasoning)
        if ask.protocol is not None and ask.protocol not in PROTOCOLS:
            raise ClientError(400, f"there is no protocol {ask.protocol!r}", "protocol")
        if ask.prompt is not None:
            prompt, reasoning = Prompt((Segment(ask.prompt),)), 0
        else:
            prompt = plain_prompt(ask.messages, endpoint.chat)
        grammar, notices = FREE_TEXT, tuple[str, ...]()
        if ask.held is not None:
            grammar, notices = grammars.of(ask.held, endpoint.languages)
            _check_strict(ask, notices)
            try:
                endpoint.check(grammar)
            except GrammarError as error:
                raise ClientError(400, str(error), ask.held.param, "not_enforceable") from error
        room = self._room(endpoint, prompt)
        tokens, reasoning = self._tokens(ask, room), min(reasoning, room // 2)
        return Prepared(ask, endpoint, prompt, grammar, tokens, reasoning, notices=notices)

    def _turn(self, ask: Ask, endpoint: Endpoint, reasoning: int) -> Prepared:
        """In the first language in which the endpoint takes the turn: a server's compiler may refuse what it
        otherwise enforces.

        Raises:
            GrammarError: there is none; it says why not in the first.
        """
        languages, failure = endpoint.languages, None
        while True:
            try:
                return self._turn_in(languages, ask, endpoint, reasoning)
            except GrammarError as error:
                failure = failure or error
                if len(languages) < 2:
                    raise failure from None
                languages = languages[1:]

    def _turn_in(self, languages: tuple[str, ...], ask: Ask, endpoint: Endpoint, reasoning: int) -> Prepared:
        spoken = protocol(
            ask.protocol or endpoint.card.protocol, fitting.spelling(endpoint.card, ask.protocol, None)
        )
        tools, answer, notices = held(ask, languages)
        _check_strict(ask, notices)
        prompt, sources = turn_prompt(
            ask,
            endpoint.chat,
            spoken,
            tools,
            answer,
            endpoint.card.examples,
            self._known(ask, spoken, endpoint),
        )
        room = self._room(endpoint, prompt)
        reasoning = min(reasoning, room // 2)
        tokens = self._tokens(ask, room - reasoning)
        spec = within(self._legal(ask, tools, answer, sources), tokens, languages)
        grammar = first_grammar(spoken, spec, languages)
        if grammar is not None:
            endpoint.check(grammar)
        return Prepared(
            ask,
            endpoint,
            prompt,
            grammar,
            tokens,
            reasoning,
            replace(spec, reasoning=reasoning),
            spoken,
            notices,
        )

    def _legal(
        self,
        ask: Ask,
        tools: tuple[ToolSpec, ...],
        answer: JsonSchema | None,
        sources: tuple[Source, ...],
    ) -> TurnSpec:
        if ask.tool_choice == "none":
            tools = ()
        elif ask.tool_choice == "named":
            tools = tuple(tool for tool in tools if tool.name == ask.tool)
        may_answer = ask.tool_choice in ("auto", "none") and (bool(sources) or not ask.cite)
        if not tools and not may_answer:
            raise ClientError(400, "there is no tool result to cite, and no tool to call", "cite")
        return TurnSpec(tools, may_answer, answer_schema=answer, sources=sources)

    def _tokens(self, ask: Ask, room: int) -> int:
        return min(ask.max_tokens or self._max_tokens, room)

    def _room(self, endpoint: Endpoint, prompt: Prompt) -> int:
        needed = endpoint.count(prompt)
        if not needed:  # a model that marks no beginning of its own has nothing to go on with
            raise ClientError(400, "the prompt is empty", "prompt")
        if needed + LEAST_ROOM > endpoint.n_ctx:
            raise ContextOverflowError(
                f"the prompt needs {needed} tokens and the context holds {endpoint.n_ctx}",
                "Shorten the messages or the tools, or start the server with a larger context (--ctx).",
            )
        return endpoint.n_ctx - needed

    # --- writing

    def write(
        self, prepared: Prepared, choice: int, deadline: float, cancel: threading.Event
    ) -> Iterator[Part]:
        """The parts of one reply.

        Raises:
            EndpointError, GrammarError, ContextOverflowError, ProtocolError: what the endpoint, or the
                strict parser where no grammar is, has against it.
            ClientError: the time is up, or it was cancelled.
        """
        free = prepared.spec is None
        # A client's stop strings are looked for here: endpoints don't say which of them they met.
        stops = () if prepared.protocol is None else prepared.protocol.stops
        limits = Limits(
            prepared.max_tokens, deadline, cancel, stops, prepared.reasoning, prepared.ask.logprobs
        )
        writing = prepared.endpoint.complete(
            prepared.prompt, prepared.grammar, limits, prepared.ask.sampling, turn=choice
        )
        reply = PlainReply(prepared, choice) if free else TurnReply(prepared, choice)
        with closing(writing):
            while True:
                try:
                    span = next(writing)
                except StopIteration as finished:
                    completion: Completion = finished.value
                    break
                if span.reasoning:
                    if span.author == "sampled":
                        yield from reply.think(span.text)
                    continue
                yield from reply.feed(span)
                if reply.stopped_at is not None:
                    cancel.set()  # and then read on, for the exact usage
        if completion.stop == "deadline":
            raise ClientError(504, "the time for the request is up", code="timeout")
        if completion.stop == "cancelled" and reply.stopped_at is None:
            raise ClientError(503, "the request was cancelled", code="cancelled")
        for part in reply.end(completion):
            if isinstance(part, Ended) and part.call is not None:
                self._remember(prepared, part.call, completion)
            yield part

    # --- what was written

    def _remember(self, prepared: Prepared, call: Called, completion: Completion) -> None:
        assert prepared.protocol is not None
        if prepared.grammar is None:  # the text may hold more than the turn
            return
        how = _how(prepared.protocol, prepared.endpoint)
        with self._lock:
            self._written[call.id] = (how, call, completion.text, completion.tokens)
            while len(self._written) > KEPT_TURNS:
                self._written.popitem(last=False)

    def _known(
        self, ask: Ask, spoken: Protocol, endpoint: Endpoint
    ) -> Callable[[Called], tuple[str, tuple[int, ...]] | None]:
        how = _how(spoken, endpoint)

        def known(called: Called) -> tuple[str, tuple[int, ...]] | None:
            """Ids are random: who knows one was given it. An altered call is another."""
            with self._lock:
                found = self._written.get(called.id)
            return found[2:] if found is not None and found[:2] == (how, called) else None

        return known


def _how(spoken: Protocol, endpoint: Endpoint) -> str:
    return f"{spoken!r} {endpoint.fingerprint}"


def _check_strict(ask: Ask, notices: tuple[str, ...]) -> None:
    """
    Raises:
        ClientError: 400, it is to be strict, and the grammar doesn't hold all.
    """
    if notices and ask.strict:
        raise ClientError(
            400, f"not strict: {notices[0]}", ask.held.param if ask.held else "tools", "not_enforceable"
        )


def _check_scored(endpoint: Endpoint, turn: bool) -> None:
    """
    Raises:
        ClientError: 400, tokens can't be told with their log-probabilities.
    """
    if turn:
        why = "they go with plain text: no tools, no schema, no results of tools"
    elif not isinstance(endpoint, LlamaEndpoint):
        why = "this endpoint gives none"
    else:
        return
    raise ClientError(400, f"no logprobs here: {why}", "logprobs", "unsupported")


# --- what a turn may be


def held(
    ask: Ask, languages: tuple[str, ...]
) -> tuple[tuple[ToolSpec, ...], JsonSchema | None, tuple[str, ...]]:
    """Tools and answer as a grammar holds them, and what it doesn't hold of them.

    Raises:
        GrammarError: a schema can't be held at all.
    """
    tools = [replace(tool, parameters=closed_schema(tool.parameters)) for tool in ask.tools]
    if ask.answer is not None:
        tools.append(ToolSpec("the answer", "", closed_schema(ask.answer)))
    specs, relaxed = all_enforceable(tools, languages)
    notices = tuple(map(str, relaxed)) if languages else (NOTHING_HELD,)
    if ask.answer is None:
        return specs, None, notices
    return specs[:-1], specs[-1].parameters, notices


def within(spec: TurnSpec, tokens: int, languages: tuple[str, ...]) -> TurnSpec:
    """The spec with bounds for its strings: the thought's in proportion, the others' where hardly any reply
    of so many tokens gets."""
    longest = LONGEST_STRING.get(languages[0], OTHERWISE) if languages else OTHERWISE
    most = max(100, min(longest, 4 * tokens))
    thought = max(spec.thought_min + 20, min(spec.thought_max, tokens // 2))
    return replace(spec, thought_max=thought, argument_max=most, answer_max=most)

"""Reasoning on a real vocabulary: budgets, tags, and a turn that stays what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localreact import Agent, tool
from localreact.decoding.context import Logits
from localreact.decoding.loop import TurnWriter
from localreact.decoding.vocab import Vocab
from localreact.endpoints.base import whole
from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.reasoning import reasoning_of
from localreact.engines.reasoning import ReasoningEngine
from localreact.errors import GrammarError, UsageError
from localreact.protocols import JsonProtocol
from localreact.trace.events import StepStarted, TextDelta, TurnCompleted
from localreact.types import (
    Completion,
    Limits,
    Prompt,
    Reasoning,
    Sampling,
    Segment,
    ToolCall,
    TurnGrammar,
    TurnSpec,
)
from tests.conftest import CHATML
from tests.specs import SEARCH
from tests.tiny import write_tiny_gguf

OPENED = CHATML.replace("assistant\n' }}", "assistant\n<think>\n' }}")
MENTIONED = CHATML + "{% if false %}<think></think>{% endif %}"
KINDS: dict[str, tuple[str, gguf.TokenType]] = {
    "mentioned": (MENTIONED, gguf.TokenType.USER_DEFINED),
    "opened": (OPENED + "{# </think> #}", gguf.TokenType.USER_DEFINED),
    "control tokens": (MENTIONED, gguf.TokenType.CONTROL),
    "plain text": (MENTIONED.replace("think>", "thinking>"), gguf.TokenType.USER_DEFINED),
    "plain text, opened": (
        OPENED.replace("think>", "thinking>") + "{# </thinking> #}",
        gguf.TokenType.USER_DEFINED,
    ),
}
TURN = JsonProtocol().grammar(
    TurnSpec(tools=(SEARCH,), answer=False, thought_max=30, argument_max=20), "lark"
)
PROMPT = Prompt((Segment("Think."),))


@pytest.fixture(scope="module", params=KINDS)
def endpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaEndpoint]:
    template, markers = KINDS[request.param]
    path = tmp_path_factory.mktemp("thinking") / "tiny.gguf"
    endpoint = LlamaEndpoint(write_tiny_gguf(path, chat_template=template, markers=markers), n_threads=1)
    yield endpoint
    endpoint.close()


Wish = Callable[[Vocab, Sequence[int]], Sequence[int]]
"""From a vocabulary and what was written since the prompt to the tokens that the model wants most."""


def with_wish(endpoint: LlamaEndpoint, wish: Wish, monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> None:
    """The model's logits become a wish and a little noise; all else stays real."""
    vocab, advance = endpoint._model.vocab, TurnWriter.advance
    noise = np.random.default_rng(seed).normal(0, 1, vocab.size).astype(np.float32)

    def wishful(writer: TurnWriter, logits: Logits | None) -> list[int]:
        if logits is not None:
            logits = noise.copy()
            logits[list(wish(vocab, writer.turn.tokens))] += 50
        return advance(writer, logits)

    monkeypatch.setattr(TurnWriter, "advance", wishful)


def complete(
    endpoint: LlamaEndpoint, budget: int, turn: int = 400, grammar: TurnGrammar | None = TURN
) -> Completion:
    return whole(endpoint.complete(PROMPT, grammar, Limits(turn, reasoning_tokens=budget), Sampling()))


def spans(completion: Completion, author: str) -> list[tuple[int, ...]]:
    return [span.tokens for span in completion.spans if span.reasoning and span.author == author]


def tags(endpoint: LlamaEndpoint) -> Reasoning:
    assert endpoint.reasoning is not None
    return endpoint.reasoning


def the_letter_x(vocab: Vocab, written: Sequence[int]) -> Sequence[int]:
    return vocab.encode_trusted("x")


@pytest.mark.parametrize("budget", [1, 2, 17])
def test_a_spent_budget_closes_the_reasoning_by_force(
    endpoint: LlamaEndpoint, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_wish(endpoint, the_letter_x, monkeypatch)
    done = complete(endpoint, budget)
    vocab, known = endpoint._model.vocab, tags(endpoint)
    before = () if known.opened else tuple(vocab.encode_trusted(f"{known.open}\n"))
    closed = tuple(vocab.encode_trusted(f"\n{known.close}\n\n"))
    assert done.reasoning == "x" * budget
    assert spans(done, "sampled") == [tuple(vocab.encode_trusted("x")) * budget]
    assert spans(done, "forced") == ([before] if before else []) + [closed]
    assert done.usage.reasoning == len(before) + budget + len(closed)
    assert done.usage.reasoning + done.usage.generated == len(done.tokens)
    assert done.stop == "complete"
    assert isinstance(JsonProtocol().parse(done.text), ToolCall)


def test_the_turns_own_limit_does_not_count_the_reasoning(
    endpoint: LlamaEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_wish(endpoint, the_letter_x, monkeypatch)
    needed = complete(endpoint, 0).usage.generated
    assert complete(endpoint, 300, turn=needed).stop == "complete"
    cut = complete(endpoint, 300, turn=needed - 1)
    assert (cut.stop, cut.reasoning) == ("length", "x" * 300)
    assert cut.text.startswith('{"thought": "')
    assert cut.usage.generated <= needed - 1


def writes(text: str, then: str) -> Wish:
    """A model that wants to write a text first, and then nothing but another."""

    def wish(vocab: Vocab, written: Sequence[int]) -> Sequence[int]:
        # What the runtime wrote before the model's first choice doesn't count.
        ids, forced = vocab.encode_trusted(text), vocab.encode_trusted("<think>\n")
        for head in (forced, vocab.encode_trusted("<thinking>\n")):
            if list(written[: len(head)]) == head:
                written = written[len(head) :]
        return ids[len(written) : len(written) + 1] or vocab.encode_trusted(then)

    return wish


def test_the_models_own_closing_tag_ends_the_reasoning_at_once(
    endpoint: LlamaEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_wish(endpoint, writes(f"yes{tags(endpoint).close}", "x"), monkeypatch)
    done = complete(endpoint, 300)
    assert done.reasoning == "yes"
    assert spans(done, "sampled") == [
        tuple(endpoint._model.vocab.encode_trusted(f"yes{tags(endpoint).close}"))
    ]
    assert spans(done, "forced")[-1] == tuple(endpoint._model.vocab.encode_trusted("\n\n"))
    assert isinstance(JsonProtocol().parse(done.text), ToolCall)


def test_no_tag_gets_into_the_turn_however_much_the_model_wants_it(
    endpoint: LlamaEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab, known = endpoint._model.vocab, tags(endpoint)
    ids = {i for text in (known.open, known.close) for i in vocab.encode_trusted(text)} & (
        vocab.control | vocab.markers
    )
    for seed in range(3):
        with_wish(endpoint, writes(f"no{known.close}", f"{known.close}{known.open}"), monkeypatch, seed)
        done = complete(endpoint, 50)
        turn = [token for span in done.spans if not span.reasoning for token in span.tokens]
        assert not ids & set(turn)
        if done.stop == "complete":
            JsonProtocol().parse(done.text)


@pytest.mark.parametrize("wanted", ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<think>"])
def test_control_tokens_are_not_legal_in_reasoning(
    endpoint: LlamaEndpoint, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_wish(endpoint, lambda vocab, written: vocab.encode_trusted(wanted), monkeypatch)
    vocab = endpoint._model.vocab
    done = complete(endpoint, 40)
    chosen = {token for span in done.spans if span.author == "sampled" for token in span.tokens}
    assert not chosen & (vocab.control | vocab.markers)
    assert done.stop in ("complete", "length")
    assert len(spans(done, "sampled")[0]) == 40


def test_without_a_budget_tags_that_the_template_opened_are_closed_at_once(endpoint: LlamaEndpoint) -> None:
    done = complete(endpoint, 0)
    assert done.reasoning == ""
    assert spans(done, "sampled") == []
    known = tags(endpoint)
    closed = tuple(endpoint._model.vocab.encode_trusted(f"\n{known.close}\n\n"))
    assert spans(done, "forced") == ([closed] if known.opened else [])
    assert isinstance(JsonProtocol().parse(done.text), ToolCall)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
def test_mask_and_single_checks_agree_and_forks_go_their_own_way(
    endpoint: LlamaEndpoint, data: st.DataObject
) -> None:
    assert endpoint._reasoning is not None
    matcher = endpoint._reasoning.start(data.draw(st.integers(0, 12)))
    while not matcher.done:
        mask = matcher.mask()
        assert [matcher.allows(token) for token in range(len(mask))] == list(mask)
        close = endpoint._model.vocab.encode_trusted(tags(endpoint).close)
        legal = [token for token in (*close, *close, *range(0, len(mask), 7)) if mask[token]]
        token = data.draw(st.sampled_from(legal or list(np.flatnonzero(mask))))
        twin, due = matcher.fork(), matcher.forced()
        matcher.accept([token])
        assert twin.forced() == due
        assert not twin.done
    with pytest.raises(GrammarError):
        matcher.accept([0])


def test_a_token_that_would_run_over_into_the_turn_does_not_end_the_tag(tmp_path: Path) -> None:
    """The tiny vocabulary has a token for '}}': with a tag that ends in a brace it spans the end."""
    endpoint = LlamaEndpoint(write_tiny_gguf(tmp_path / "m.gguf", chat_template=CHATML), n_threads=1)
    vocab = endpoint._model.vocab
    both = vocab.pieces.index(b"}}")
    matcher = ReasoningEngine(vocab, Reasoning("{a}", "{b}", opened=True)).start(10)
    assert matcher.allows(both)
    matcher.accept(vocab.encode_trusted("{b"))
    assert not matcher.allows(both)
    assert not matcher.mask()[both]
    matcher.accept(vocab.encode_trusted("}"))
    assert matcher.forced() == vocab.encode_trusted("\n\n")
    endpoint.close()


# --- runs


def test_a_run_reasons_and_its_prompts_only_grow(endpoint: LlamaEndpoint) -> None:
    ran: list[str] = []

    @tool
    def search(query: str) -> str:
        """Search."""
        ran.append(query)
        return "found"

    agent = Agent(
        endpoint, [search], reasoning_tokens=20, max_steps=2, examples=1, sampling=Sampling(temperature=1.0)
    )
    events = list(agent.stream("What?"))
    started = [event for event in events if isinstance(event, StepStarted)]
    assert [event.reasoning for event in started] == [20, 20]
    done = [event.completion for event in events if isinstance(event, TurnCompleted)]
    assert all(0 < each.usage.reasoning <= 20 + 24 for each in done)
    # The second prompt holds what the model reasoned as the ids that it wrote: nothing is evaluated again.
    assert started[1].prompt[0].tokens == done[0].tokens
    assert done[1].usage.reused > done[0].usage.prompt + done[0].usage.reasoning
    assert any(isinstance(event, TextDelta) and event.field == "reasoning" for event in events)


def test_turns_that_the_model_did_not_write_have_their_reasoning_closed(endpoint: LlamaEndpoint) -> None:
    @tool
    def search(query: str) -> str:
        """Search."""
        return "found"

    agent = Agent(endpoint, [search], examples=2)
    text = agent._parts.opening.prompt.text
    known = tags(endpoint)
    assert text.count(known.open) == text.count(known.close) == (4 if known.opened else 0)


def test_reasoning_is_on_where_a_template_or_a_card_names_its_tags_and_off_elsewhere(
    endpoint: LlamaEndpoint, tiny: LlamaEndpoint
) -> None:
    assert Agent(endpoint).budgets.reasoning_tokens == 512
    assert Agent(endpoint, reasoning_tokens=0).budgets.reasoning_tokens == 0
    assert Agent(tiny).budgets.reasoning_tokens == 0  # tags in its vocabulary alone
    assert Agent(tiny, reasoning_tokens=9).budgets.reasoning_tokens == 9


def test_asking_a_model_without_tags_to_reason_is_an_error(smollm2: LlamaEndpoint) -> None:
    assert Agent(smollm2).budgets.reasoning_tokens == 0
    with pytest.raises(UsageError, match="isn't known to reason"):
        Agent(smollm2, reasoning_tokens=100)
    with pytest.raises(UsageError, match="0 \\(none\\) or more"):
        Agent(smollm2, reasoning_tokens=-1)


def test_a_small_context_leaves_less_for_reasoning_and_always_a_turn(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "small.gguf", chat_template=MENTIONED, n_ctx=512)
    with closing(LlamaEndpoint(path, n_threads=1)) as endpoint:
        started = [
            event
            for event in Agent(endpoint, reasoning_tokens=5000, max_steps=1).stream("What?")
            if isinstance(event, StepStarted)
        ]
    assert 0 < started[0].reasoning < 512 - 128
    assert started[0].max_tokens >= 128


# --- where tags come from


def test_a_card_goes_before_the_template_and_the_template_before_the_vocabulary() -> None:
    words = ("<think>", "</think>")
    assert reasoning_of({}, CHATML, "") is None
    assert reasoning_of({}, CHATML, "", words) == Reasoning(tokens=0)
    assert reasoning_of({}, "… [/THINK] …", "", words) == Reasoning("[THINK]", "[/THINK]")
    card = {"open": "<a>", "close": "</a>", "tokens": 9}
    assert reasoning_of(card, "</think>", "assistant\n<a>\n") == Reasoning("<a>", "</a>", True, 9)


def test_a_template_that_opens_or_closes_the_tags_itself_is_noticed() -> None:
    assert reasoning_of({}, "</think>", "assistant\n<think>\n") == Reasoning(opened=True)
    assert reasoning_of({}, "</think>", "<think>\n\n</think>\n\n") == Reasoning(tokens=0)


# --- without a grammar


@pytest.mark.parametrize("budget", [0, 60])
def test_stop_strings_in_reasoning_do_not_end_a_free_turn(
    tmp_path: Path, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dify 22521: a stop word inside reasoning."""
    path = write_tiny_gguf(tmp_path / "free.gguf", chat_template=MENTIONED)
    endpoint = LlamaEndpoint(path, n_threads=1, engine="free")
    turn = JsonProtocol().write(ToolCall("I look it up.", "search", {"query": "x"}))
    thought = "That\nObservation: {\n{ was stale"
    head = "" if budget else "<think>"
    after = "\n\n" if budget else ""  # with a budget the runtime writes it
    wish = writes(f"{head}{thought}</think>{after}{turn}", "\n")
    with_wish(endpoint, wish, monkeypatch)
    limits = Limits(200, stops=("\n{", "\nObservation", "\n\n\n"), reasoning_tokens=budget)
    done = whole(endpoint.complete(PROMPT, None, limits, Sampling()))
    assert (done.reasoning, done.text) == (thought, turn)
    endpoint.close()

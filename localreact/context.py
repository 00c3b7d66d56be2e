"""What goes into the prompt: an append-only transcript."""

from __future__ import annotations

import json
from collections.abc import Iterable

from localreact.endpoints.chat import ChatFormat
from localreact.examples import quote_for
from localreact.grammar.answers import AnswerType
from localreact.protocols.base import Protocol
from localreact.types import Evidence, Finish, Observation, Prompt, Segment, ToolCall, ToolExample


class Transcript:
    """A conversation as segments. Nothing that was added ever changes, so that every prompt begins
    with the one before it; `compact` is the exception."""

    def __init__(self, chat: ChatFormat, system: Iterable[Segment]) -> None:
        self._chat = chat
        self._segments: list[Segment] = [Segment(chat.begin, trusted=True), *system]
        self._to_user = chat.system_to_user
        self._open = ""  # what closes the reasoning that the last delimiter opened
        self._taken = 0
        self._shared = 0
        self._question: list[Segment] = []
        """Everything up to the end of the question."""
        self._ends: list[int] = []
        """Where the question ends, and each exchange after it."""

    @property
    def prompt(self) -> Prompt:
        """Everything so far; it ends where the model is to speak."""
        return Prompt(tuple(self._segments), self._shared)

    def copy(self) -> Transcript:
        """A transcript that goes its own way from here and shares what there is; nothing of it counts
        as taken."""
        twin = Transcript(self._chat, ())
        twin._segments, twin._to_user, twin._open = list(self._segments), self._to_user, self._open
        twin._shared = len(twin._segments)
        return twin

    def take_new(self) -> tuple[Segment, ...]:
        """What was added since this was last asked."""
        new, self._taken = tuple(self._segments[self._taken :]), len(self._segments)
        return new

    def user(self, segments: Iterable[Segment]) -> None:
        """What the user, or the runtime, says; then the model is to speak."""
        self._close_reasoning()
        self._segments.append(Segment(self._to_user, trusted=True))
        self._segments.extend(segments)
        self._segments.append(Segment(self._chat.user_to_model, trusted=True))
        self._to_user, self._open = self._chat.model_to_user, self._chat.closing

        if self._ends:
            self._ends.append(len(self._segments))

    def ask(self, segments: Iterable[Segment]) -> None:
        """The question. What comes after it can be compacted, it itself can't."""
        self.user(segments)
        self._question = self._segments[:-1]
        self._ends = [len(self._segments)]

    @property
    def exchanges(self) -> int:
        """What was said and answered since the question (or since it was last compacted)."""
        return len(self._ends) - 1

    def compact(self, told: Iterable[Segment], keep: int) -> int:
        """Put `told` at the end of the question's message, in place of all but the last `keep` exchanges
        and of what was told before. Returns how many segments stay where they are."""
        before, first = self._segments, self._ends[max(0, self.exchanges - keep)]
        start = [*self._question, *told, Segment(self._chat.user_to_model, trusted=True)]
        self._segments = start + before[first:]
        self._ends = [end + len(start) - first for end in self._ends if end >= first]
        pairs = zip(before, self._segments, strict=False)
        kept = next((at for at, (old, new) in enumerate(pairs) if old != new), len(start))
        self._taken = min(self._taken, kept)
        return kept

    def model(self, text: str, tokens: tuple[int, ...] = ()) -> None:
        """What the model said: as the ids that it wrote, where there are any."""
        if not tokens:  # the ids hold the model's reasoning too
            self._close_reasoning()
        if text:
            self._segments.append(Segment(text, tokens=tokens))
            self._open = ""

    def _close_reasoning(self) -> None:
        if self._open:
            self._segments.append(Segment(self._open, trusted=True))
            self._open = ""


def opening(
    chat: ChatFormat,
    protocol: Protocol,
    system: Iterable[Segment],
    examples: Iterable[tuple[str, ToolExample]],
    cite: bool = False,
) -> Transcript:
    """System text and worked examples (each with its tool's name), shared by all runs of an agent."""
    transcript = Transcript(chat, system)
    for tool, example in examples:
        transcript.user([Segment(example.question)])
        transcript.model(protocol.write(ToolCall(example.thought, tool, example.arguments)))
        transcript.user(protocol.observation(Observation(tool, example.result), 1 if cite else None))
        evidence = (Evidence(1, quote_for(example)),) if cite else ()
        transcript.model(protocol.write(Finish(example.conclusion, answer=example.answer, evidence=evidence)))
    return transcript


def question(text: str, answer: AnswerType | None, recalled: Iterable[str] = ()) -> list[Segment]:
    """What is asked, and before it what was recalled for it, and in which form the answer is to come, if
    that says more than the grammar does.

    The form stands before the question: after it, it led a small model away from its tools (2 of 7 right
    answers instead of 5; without a schema in the prompt 6).
    """
    lines = [Segment(f"\n- {line}") for line in recalled]
    told = [Segment("From earlier runs:", True), *lines, Segment("\n\n", True)] if lines else []
    if answer is None or answer.schema.keys() <= {"type", "title"}:
        return [*told, Segment(text)]
    schema = json.dumps(answer.schema, ensure_ascii=False)
    return [*told, Segment(f"Answer as JSON for the schema {schema}.\n"), Segment(text)]

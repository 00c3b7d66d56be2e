"""Reads text while it is being written: reasoning apart, and nothing after a stop string."""

from __future__ import annotations

from localreact.protocols.reasoning import split
from localreact.types import Reasoning


class StopFilter:
    """Lets text through up to the first stop string; what may be the beginning of one is held back."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped_at: str | None = None

    def feed(self, text: str) -> str:
        if self.stopped_at is not None:
            return ""
        text = self._held + text
        ends = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            at, self.stopped_at = min(ends)
            self._held = ""
            return text[:at]
        keep = _possible_beginning(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back, when nothing more comes."""
        held, self._held = self._held, ""
        return held


class PlainReader:
    """Sets reasoning that a plain reply begins with apart from its content, as `reasoning.split` does of the
    whole; each says what is new and certain. Without `tags` there is no reasoning."""

    def __init__(self, tags: Reasoning | None) -> None:
        self._tags = tags
        self._text = ""
        self._shown = [0, 0]
        self.content_at = 0
        """Where the content begins in the text, once it has begun."""

    def feed(self, text: str) -> tuple[str, str]:
        """What comes to reasoning, and to content."""
        self._text += text
        return self._new(*self._certain())

    def finish(self) -> tuple[str, str]:
        """What was held back, when nothing more comes."""
        return self._new(*(("", self._text) if self._tags is None else split(self._text, self._tags)))

    def _certain(self) -> tuple[str, str]:
        if self._tags is None:
            return "", self._text
        begun = self._text.lstrip()
        reasoning, content = split(self._text, self._tags)
        rest = content if reasoning or begun.startswith(self._tags.open) else begun
        if not content and begun.startswith(self._tags.open):  # not closed yet
            keep = _possible_beginning(reasoning, (self._tags.close,))
            return reasoning[: len(reasoning) - keep].rstrip(), ""
        if self._tags.open.startswith(rest.strip()) or rest.startswith(self._tags.open):
            return reasoning, ""
        return reasoning, content

    def _new(self, *texts: str) -> tuple[str, str]:
        self.content_at = len(self._text) - len(texts[1])
        new = [text[shown:] for text, shown in zip(texts, self._shown, strict=True)]
        self._shown = [max(shown, len(text)) for text, shown in zip(texts, self._shown, strict=True)]
        return new[0], new[1]


def _possible_beginning(text: str, wanted: tuple[str, ...]) -> int:
    """How many last characters may be the beginning of one of the texts wanted."""
    longest = max(map(len, wanted), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        if any(each.startswith(text[-length:]) for each in wanted):
            return length
    return 0

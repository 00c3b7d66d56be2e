"""Text to token ids and back, with a line drawn between control tokens and text.

llama.cpp splits text at special tokens and tokenizes what lies between. `Vocab.encode` does the
same over segments, but recognises control tokens in trusted segments only, so that a tool result
that holds `<|im_end|>` stays seven ordinary characters.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from localreact.decoding import backend
from localreact.errors import ModelError
from localreact.types import Segment

KEPT_TEXTS, LONGEST_KEPT = 4096, 2000
"""Texts whose ids are kept, and characters of one: longer ones don't come again and again."""

_MARKUP = re.compile(r"[<\[|].*[>\]|]", re.S)


class Vocab:
    """A model's vocabulary.

    `control` are the ids that steer the model rather than say something (unknown and unused ones
    too), `eog` those among them that end a generation, `markers` the user-defined tokens that look
    like markup (`<think>`).
    """

    def __init__(self, model: Any) -> None:
        llama = backend.load()
        self._llama = llama
        self.handle = llama.llama_model_get_vocab(model)
        self.size: int = llama.llama_vocab_n_tokens(self.handle)
        attributes = [llama.llama_vocab_get_attr(self.handle, i) for i in range(self.size)]
        control_bits = (
            llama.LLAMA_TOKEN_ATTR_CONTROL | llama.LLAMA_TOKEN_ATTR_UNKNOWN | llama.LLAMA_TOKEN_ATTR_UNUSED
        )
        self.eog = frozenset(i for i in range(self.size) if llama.llama_vocab_is_eog(self.handle, i))
        self.control = frozenset(i for i, bits in enumerate(attributes) if bits & control_bits) | self.eog
        self.bos: int = llama.llama_vocab_bos(self.handle)
        self.eos: int = llama.llama_vocab_eos(self.handle)
        self.add_bos: bool = bool(llama.llama_vocab_get_add_bos(self.handle))
        user_defined = [i for i, b in enumerate(attributes) if b & llama.LLAMA_TOKEN_ATTR_USER_DEFINED]
        # Control tokens that a template may write, and user-defined tokens that look like markup.
        # Plain user-defined ones (a tokenizer's "\n\n") are text and stay whole.
        self._special = {self._text(i): i for i in (*self.control, *user_defined) if self._text(i)}
        self._special_pattern = _any_of(self._special)
        self.markers = frozenset(i for i in user_defined if _MARKUP.fullmatch(self._text(i)))
        self._markers_pattern = _any_of(map(self._text, self.markers))
        self._encode_kept = functools.lru_cache(maxsize=KEPT_TEXTS)(self._encode_text)

    def _text(self, token: int) -> str:
        return str(self._llama.llama_vocab_get_text(self.handle, token).decode("utf-8", "replace"))

    @functools.cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of every token as text; empty for control tokens."""
        buffer = ctypes.create_string_buffer(256)
        to_piece = self._llama.llama_token_to_piece
        pieces = []
        for token in range(self.size):
            if token in self.control:
                pieces.append(b"")
                continue
            n = to_piece(self.handle, token, buffer, len(buffer), 0, True)
            if n < 0:
                buffer = ctypes.create_string_buffer(-n)
                n = to_piece(self.handle, token, buffer, len(buffer), 0, True)
            pieces.append(bytes(buffer.raw[:n]))
        return pieces

    def special_text(self, token: int) -> str:
        """How a special token is spelled; empty where the model has none (id -1)."""
        return self._text(token) if 0 <= token < self.size else ""

    def encode(self, segments: Iterable[Segment]) -> list[int]:
        """Token ids of a prompt, with a beginning-of-sequence token where the model wants one."""
        return self.encode_after((), segments)[0]

    def encode_after(
        self, before: Sequence[int], segments: Iterable[Segment]
    ) -> tuple[list[int], tuple[int, int]]:
        """Token ids of a prompt whose first segments are settled as the ids `before`.

        The other value says how many of `segments` are settled, and how many ids they and those before
        take: whatever follows can't change them, since a control token or the model's own ids end them.
        """
        ids: list[int] = list(before) or ([self.bos] if self.add_bos else [])
        settled = (0, len(before))
        run: list[str] = []  # pieces of text that are tokenized together

        def flush() -> None:
            for part in self._cut_markers("".join(run)):
                ids.extend(self.encode_text(part))
            run.clear()

        for number, segment in enumerate(segments, 1):
            if segment.tokens:
                flush()
                ids.extend(segment.tokens)
            elif segment.trusted:
                for part in self._special_pattern.split(segment.text):
                    if (token := self._special.get(part)) is None:
                        if part:
                            run.append(part)
                    else:
                        flush()
                        if not (
                            self.add_bos and token == self.bos and ids == [self.bos]
                        ):  # a template may write it too
                            ids.append(token)
            else:
                run.append(segment.text)
            if not run:
                settled = (number, len(ids))
        flush()
        return ids, settled

    def encode_trusted(self, text: str) -> list[int]:
        """Token ids of the runtime's own text in the middle of a prompt, its special tokens recognised."""
        return self.encode([Segment(text, trusted=True)])[int(self.add_bos) :]

    def _cut_markers(self, text: str) -> list[str]:
        """Text that holds no control token of ours, cut inside each marker so that none is whole."""
        pieces, start = [], 0
        while found := self._markers_pattern.search(text, start):
            pieces.append(text[start : found.start() + 1])
            start = found.start() + 1
        return [piece for piece in (*pieces, text[start:]) if piece]

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of plain text; control tokens aren't recognised."""
        return self._encode_kept(text) if len(text) <= LONGEST_KEPT else self._encode_text(text)

    def _encode_text(self, text: str) -> tuple[int, ...]:
        data = text.encode("utf-8", "replace")
        room = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * room)()
            n = self._llama.llama_tokenize(self.handle, data, len(data), buffer, room, False, False)
            if n >= 0:
                return tuple(buffer[:n])
            if -n <= room:
                raise ModelError(f"llama.cpp can't tokenize a text of {len(data)} bytes")
            room = -n


class PromptEncoder:
    """Encodes prompts that grow: segments that an earlier prompt began with aren't tokenized again."""

    def __init__(self, vocab: Vocab, keep: int = 32) -> None:
        self._vocab = vocab
        self._keep = keep
        self._known: dict[tuple[Segment, ...], list[int]] = {}  # settled segments; latest used last
        self._lock = threading.Lock()

    def encode(self, segments: tuple[Segment, ...]) -> list[int]:
        """What `Vocab.encode` gives."""
        with self._lock:
            known = max((each for each in self._known if segments[: len(each)] == each), key=len, default=())
            before = self._known.pop(known, [])
        ids, (count, length) = self._vocab.encode_after(before, segments[len(known) :])
        with self._lock:
            if known:
                self._known[known] = before
            if count:
                self._known[segments[: len(known) + count]] = ids[:length]
            while len(self._known) > self._keep:
                del self._known[next(iter(self._known))]
        return ids


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern with one group that matches any of the texts, the longest first; or never."""
    ordered = sorted(set(texts), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, ordered)) + ")" if ordered else r"((?!))")

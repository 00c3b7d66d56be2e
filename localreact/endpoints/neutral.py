"""What in a text may be a control token; and prompts as text, for servers that take no ids.

Untrusted text must not spell a control token there. What a server's tokenizer takes for one isn't known
here, so everything that looks like one is broken by a space after its first character: what the templates
of known models use, and whatever this model's own delimiters hold.
"""

from __future__ import annotations

import functools
import re

from localreact.endpoints.chat import ChatFormat
from localreact.types import Prompt

_WORDS = (
    "s bos eos pad unk mask cls sep think thinking tool_call tool_response tools image img audio video "
    "user assistant system human bot model end eot"
)
_MARKUP = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z][A-Z_]{1,30}\]|<<[^<>\s]{1,30}>>")
_KNOWN = (
    r"<[|｜][^<>]{1,60}[|｜]>"  # <|im_start|>, <｜User｜>
    r"|<\|[^<>\s|]{1,40}>|<[^<>\s|]{1,40}\|>"
    rf"|</?(?:{_WORDS.replace(' ', '|')})>"
    r"|</?[a-z0-9]+(?:_[a-z0-9]+)+>|<unused\d+>|<0x[0-9A-Fa-f]{2}>"  # <start_of_turn>
    r"|\[/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|IMG|MASK|CLS|SEP|PAD|UNK)\]"
    r"|<</?SYS>>"
)


_ANGLED = re.compile(r"<[^<>\s]{1,60}>|<[|｜][^<>]{1,60}[|｜]>")
_SQUARE = re.compile(r"\[/?[A-Za-z][A-Za-z_]{1,30}\]")


def looks_special(text: str) -> list[tuple[int, str]]:
    """What might be one token by itself, and where it begins: to ask a tokenizer about. One may stand inside
    of another."""
    found = [(each.start(), each[0]) for form in (_ANGLED, _SQUARE) for each in form.finditer(text)]
    return sorted(found)


@functools.lru_cache(maxsize=16)
def markers_of(chat: ChatFormat) -> re.Pattern[str]:
    """What has to be broken in untrusted text, given the format of the conversation."""
    delimiters = (chat.begin, chat.system_to_user, chat.user_to_model, chat.model_to_user)
    own = sorted({found for text in delimiters for found in _MARKUP.findall(text)}, key=len, reverse=True)
    return re.compile("|".join([*map(re.escape, own), _KNOWN]), re.I)


def neutral(text: str, markers: re.Pattern[str]) -> tuple[str, int]:
    """A text that isn't trusted without whole markers, and how many were broken in it."""
    broken = 0
    while True:  # breaking one may leave another, where they overlap
        text, count = markers.subn(lambda found: f"{found[0][0]} {found[0][1:]}", text)
        broken += count
        if not count:
            return text, broken


def neutral_text(prompt: Prompt, markers: re.Pattern[str]) -> tuple[str, int]:
    """The prompt as one text, and how many markers were broken in what isn't trusted."""
    parts: list[str] = []
    run: list[str] = []  # a marker may come in several segments
    broken = 0

    def flush() -> None:
        nonlocal broken
        text, count = neutral("".join(run), markers)
        run.clear()
        broken += count
        parts.append(text)

    for segment in prompt.segments:
        if segment.trusted:
            flush()
            parts.append(segment.text)
        else:
            run.append(segment.text)
    flush()
    return "".join(parts), broken

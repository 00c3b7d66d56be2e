"""Reasoning: what a model says between tags before its turn. It is never read as a turn."""

from __future__ import annotations

from localreact.types import Reasoning

AFTER = "\n\n"
"""What stands between the closing tag and the turn, as in the templates of Qwen and DeepSeek."""


def opening(tags: Reasoning) -> str:
    """What the runtime writes before the model reasons; nothing where the chat template did."""
    return "" if tags.opened else f"{tags.open}\n"


def closing(tags: Reasoning) -> str:
    """What the runtime writes where the model doesn't close its reasoning itself."""
    return f"\n{tags.close}{AFTER}"


def split(text: str, tags: Reasoning) -> tuple[str, str]:
    """The reasoning that a text begins with, without its tags, and the rest of the text.

    Reasoning that is never closed takes all of the text. Tags further on in the text are text.
    """
    parts, rest, inside = [], text, tags.opened
    while inside or rest.lstrip().startswith(tags.open):
        inside = False
        thought, _, rest = rest.lstrip().removeprefix(tags.open).partition(tags.close)
        parts.append(thought.strip())
    return ("\n".join(parts), rest.lstrip()) if parts else ("", text)

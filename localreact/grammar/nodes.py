"""Putting rules' nodes together: sequences and choices that stay as simple as they can be."""

from __future__ import annotations

from collections.abc import Iterable

from localreact.grammar.rules import Alt, Node, Repeat, Seq, Text

EMPTY = Text("")
NOTHING = Alt(())
"""Fits no text at all, not even the empty one."""


def seq(*parts: Node) -> Node:
    """One after the other; nothing, where a part can't be."""
    flat: list[Node] = []
    for part in parts:
        for each in part.parts if isinstance(part, Seq) else (part,):
            if each == NOTHING:
                return NOTHING
            if isinstance(each, Text) and flat and isinstance(flat[-1], Text):
                flat[-1] = Text(flat[-1].text + each.text)
            elif each != EMPTY:
                flat.append(each)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat)) if flat else EMPTY


def alt(options: Iterable[Node]) -> Node:
    """One of several, each once, without those that can't be."""
    flat: dict[Node, None] = {}
    for option in options:
        for each in option.options if isinstance(option, Alt) else (option,):
            flat[each] = None
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def repeat(part: Node, least: int = 0, most: int | None = None) -> Node:
    """From `least` to `most` times."""
    if most is not None and most < least:
        return NOTHING
    if most == 0:
        return EMPTY
    if part == NOTHING:
        return NOTHING if least else EMPTY
    return part if least == most == 1 or part == EMPTY else Repeat(part, least, most)


def maybe(part: Node) -> Node:
    return repeat(part, 0, 1)

"""How other people's parsers read a turn: by the first brace, the first match, the last match.

For ledgers only: they count what such a parser would have made of a text that the strict one reads
rightly. Nothing here ever decides what is executed (a test keeps it away from the loop).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from localreact.protocols.base import answered
from localreact.types import Finish, ToolCall, Turn

Reader = Callable[[str], Turn | None]
"""What a text says by such a reader, without its thought; None where it finds nothing."""

UNNAMED = "input"
"""The name of an argument that stands without one."""

_FIRST_BRACE = re.compile(r"\{.*?\}", re.S)
_NAMED_BEFORE = re.compile(r"Action:\s*(\w+)")
_ACTION = re.compile(
    r"Final Answer:\s*(?P<answer>[^\n]*)"
    r"|Insufficient:\s*(?P<missing>[^\n]*)"
    r"|Action:\s*(?P<tool>\w+)\s*(?:"
    r"\n\s*Action Input:\s*(?P<json>[^\n]*)|\[(?P<bracket>[^\n]*?)\]|\((?P<call>[^\n]*?)\))"
)


def first_brace(text: str) -> Turn | None:
    """The text from the first opening brace to the first closing one, as JSON."""
    found = _FIRST_BRACE.search(text)
    fields = _object(found[0]) if found else None
    if found is None or fields is None:
        return None
    if (turn := _turn(fields)) is not None:
        return turn
    name = _NAMED_BEFORE.search(text[: found.start()])
    return ToolCall("", name[1], fields) if name else None


def first_action(text: str) -> Turn | None:
    """The first place that looks like an action or an answer, wherever it stands."""
    return next(iter(_actions(text)), None)


def last_action(text: str) -> Turn | None:
    """The last such place."""
    return next(reversed(_actions(text)), None)


READERS: Mapping[str, Reader] = {
    "first_brace": first_brace,
    "first_action": first_action,
    "last_action": last_action,
}


def parser_loss(text: str, turn: Turn) -> tuple[str, ...]:
    """The readers that make something else of a text than the turn that it is, or nothing."""
    return tuple(name for name, read in READERS.items() if not _says_the_same(read(text), turn))


def _actions(text: str) -> list[Turn]:
    """What looks like an action, in the order of the text."""
    found = []
    at = 0
    while match := _ACTION.search(text, at):
        found.append((match.start(), _from_match(match)))
        at = match.start() + 1  # another may stand inside what this one matched
    found += [(at, _turn(fields)) for at, fields in _objects(text)]
    return [turn for _, turn in sorted(found, key=lambda each: each[0]) if turn is not None]


def _from_match(found: re.Match[str]) -> Turn | None:
    if found["answer"] is not None:
        return Finish("", answer=found["answer"].strip())
    if found["missing"] is not None:
        return Finish("", missing=found["missing"].strip())
    tool = found["tool"]
    if found["json"] is not None:
        arguments = _object(found["json"])
        return None if arguments is None else ToolCall("", tool, arguments)
    inner = found["bracket"] if found["bracket"] is not None else found["call"]
    if tool.lower() != "finish":
        arguments = {UNNAMED: inner} if found["bracket"] is not None else _keywords(inner)
        return ToolCall("", tool, arguments)
    if found["bracket"] is not None:
        missing = inner.removeprefix("insufficient:")
        return Finish("", answer=inner) if missing == inner else Finish("", missing=missing.strip())
    if inner.startswith("missing="):
        return Finish("", missing=str(_value(inner.removeprefix("missing="))))
    return answered("", _value(inner.removeprefix("answer=")))


def _keywords(inner: str) -> dict[str, Any]:
    """Keyword arguments by splitting at commas and equals signs, whether they stand in strings or not."""
    arguments = {}
    for part in inner.split(",") if inner.strip() else ():
        name, equals, value = part.partition("=")
        arguments[name.strip() if equals else UNNAMED] = _value(value if equals else name)
    return arguments


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip().strip("\"'")


def _objects(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects by counting braces, those inside strings too."""
    depth = start = 0
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            start = brace.start() if depth == 0 else start
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0 and (fields := _object(text[start : brace.end()])) is not None:
                yield start, fields


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _turn(fields: Mapping[str, Any]) -> Turn | None:
    """A turn from the fields of an object; None where it names no tool and no answer."""
    tool, arguments = fields.get("tool"), fields.get("arguments", {})
    if isinstance(tool, str) and isinstance(arguments, dict) and tool != "finish":
        return ToolCall("", tool, arguments)
    ending = arguments if tool == "finish" and isinstance(arguments, dict) else fields
    if "answer" in ending:
        return answered("", ending["answer"])
    if "missing" in ending:
        return Finish("", missing=str(ending["missing"]))
    return None


def _says_the_same(read: Turn | None, turn: Turn) -> bool:
    if isinstance(read, Finish) and isinstance(turn, Finish):
        return (read.answer, read.missing) == (turn.answer, turn.missing)
    if isinstance(read, ToolCall) and isinstance(turn, ToolCall) and read.tool == turn.tool:
        unnamed = read.arguments.keys() == {UNNAMED} and len(turn.arguments) == 1
        if unnamed:
            return list(read.arguments.values()) == list(turn.arguments.values())
        return read.arguments == turn.arguments
    return False

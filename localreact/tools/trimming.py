"""What of a result the model is shown. The whole stays in the run and in its trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localreact.errors import ToolDefinitionError
from localreact.tools.results import as_text, plain
from localreact.types import Excerpt


@dataclass(frozen=True, slots=True)
class Trim:
    """A tool's own trimming, in this order:

    rows: of a list, the first so many.
    fields: of an object, or of each object in a list, these fields in this order.
    render: a sentence instead of JSON: a format (`"{city}: {degrees} °C"`) that an object, or each
        object of a list, is put into; or a function of what the tool returned (with `fields`, of what
        they leave).
    max_chars, tail: characters at most, of which `tail` are from the end.

    Raises:
        ToolDefinitionError: numbers that make no sense.
    """

    rows: int | None = None
    fields: Sequence[str] = ()
    render: str | Callable[[Any], str] | None = None
    max_chars: int | None = None
    tail: int = 0

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise ToolDefinitionError(f"rows must be at least 1, not {self.rows}")
        if self.max_chars is not None and self.max_chars < 1:
            raise ToolDefinitionError(f"max_chars must be at least 1, not {self.max_chars}")
        if self.tail and not 0 <= self.tail < (self.max_chars or 0):
            raise ToolDefinitionError(
                f"tail must be from 0 to max_chars, not {self.tail}", "Give max_chars too, and more of it."
            )
        if isinstance(self.fields, str) or not all(isinstance(each, str) for each in self.fields):
            raise ToolDefinitionError(f"fields is a list of names, not {self.fields!r}")

    def excerpt(self, value: Any, content: str) -> Excerpt | None:
        """What of a result is shown; None where its trimming says nothing of it.

        `content` is the value's text. Where `render` fails, the text is shown without it, and the
        failure is in it: what the tool did isn't lost.
        """
        view, dropped = self._view(value)
        text = content if view is None else view
        by_row = view is not None and isinstance(value, list | tuple) and not callable(self.render)
        head, tail = len(text), 0
        if self.rows is not None and by_row:
            head = min(head, sum(len(line) + 1 for line in text.split("\n")[: self.rows]) - 1)
        if self.max_chars is not None and head > self.max_chars:
            head, tail = self.max_chars - self.tail, self.tail
        if view is None and head == len(text) and self.max_chars is None:
            return None
        return Excerpt(head, tail, view if view != content else None, by_row, dropped)

    def _view(self, value: Any) -> tuple[str | None, tuple[str, ...]]:
        """The text that takes the content's place, if any does, and the names of the fields left out."""
        reduced, dropped = value, dict[str, None]()
        if self.fields:
            reduced = _map_rows(plain(value), lambda row: _only(row, self.fields, dropped))
        if callable(self.render):
            try:
                return as_text(self.render(reduced)), tuple(dropped)
            except Exception as error:  # the tool author's code
                return f"{as_text(reduced)} [render failed: {type(error).__name__}: {error}]", tuple(dropped)
        is_list = isinstance(value, list | tuple)
        if self.render is None and not self.fields and not (self.rows is not None and is_list):
            return None, ()
        rows = plain(reduced) if is_list else [plain(reduced)]
        return "\n".join(self._line(row) for row in rows), tuple(dropped)

    def _line(self, row: Any) -> str:
        if not isinstance(self.render, str):
            return row if isinstance(row, str) and "\n" not in row else json.dumps(row, ensure_ascii=False)
        try:
            text = self.render.format_map(row) if isinstance(row, Mapping) else self.render.format(row)
        except Exception as error:
            text = f"{as_text(row)} [render failed: {type(error).__name__}: {error}]"
        return " ".join(text.splitlines())


def _map_rows(value: Any, change: Callable[[Any], Any]) -> Any:
    return [change(row) for row in value] if isinstance(value, list) else change(value)


def _only(row: Any, fields: Sequence[str], dropped: dict[str, None]) -> Any:
    if not isinstance(row, Mapping):
        return row
    dropped.update(dict.fromkeys(key for key in row if key not in fields))
    return {key: row[key] for key in fields if key in row}

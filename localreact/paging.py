"""The rest of results that were shown in part: what is said of it, and the call that asks for it.

`more` stands in no tool list, so that prompts stay append-only and a small model isn't distracted: the
mark on a cut result names it, and the grammar admits it from then on, for results that have a rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from localreact.run import RunState
from localreact.types import Excerpt, Observation, ToolCall, ToolSpec

MORE = "more"
PAGE = 4000  # characters that an observation shows at most, unless its tool says otherwise


def document(observation: Observation) -> str:
    """All that there is to read of a result: what trimming made of it, then the whole."""
    excerpt = observation.excerpt
    if excerpt is None or excerpt.view is None:
        return observation.content
    return f"{excerpt.view}\n{observation.content}"


def rests(state: RunState) -> dict[int, int]:
    """Where in its document each result that has a rest was last left off, by the result's step."""
    left_off: dict[int, int] = {}
    for step in state.steps:
        if step.observation is None or not step.observation.executed or step.observation.excerpt is None:
            continue
        excerpt = step.observation.excerpt
        left_off[excerpt.step or step.number] = excerpt.start + excerpt.head
    return {number: at for number, at in left_off.items() if at < len(_document_of(state, number))}


def spec(state: RunState) -> ToolSpec | None:
    """`more`, for the results that have a rest; None where none has."""
    refs = [str(number) for number in rests(state)]
    return _spec({"type": "string", "enum": refs}) if refs else None


def _spec(ref: dict[str, object]) -> ToolSpec:
    parameters = {"type": "object", "properties": {"ref": ref}, "required": ["ref"]}
    return ToolSpec(MORE, "Read on in a result of which a part was left out.", parameters)


_ROW = "\n"

ANY = _spec({"type": "string"})
"""`more` for a parser, which has to know the tool's parameter and no more."""


def next_page(state: RunState, call: ToolCall) -> Observation:
    """The next stretch of the result that a call of `more` names."""
    left_off = rests(state)
    ref = str(call.arguments.get("ref", ""))
    number = {str(each): each for each in left_off}.get(ref, 0)
    if number not in left_off:
        refs = ", ".join(map(str, left_off)) or "none"
        return Observation(MORE, f"there is no more to read of {ref!r}; there is of: {refs}", False, False)
    start, text = left_off[number], _document_of(state, number)
    page = text[start : start + PAGE]
    return Observation(MORE, page, excerpt=Excerpt(len(page), step=number, start=start, total=len(text)))


def shown_at_most(observation: Observation) -> str:
    """What the model is shown of a result where there is room for it, but for the mark."""
    text, excerpt = _shown_of(observation)
    return text[: excerpt.head] + text[max(excerpt.head, len(text) - excerpt.tail) :]


def _shown_of(observation: Observation) -> tuple[str, Excerpt]:
    text = observation.content
    excerpt = observation.excerpt or Excerpt(min(len(text), PAGE))
    return text if excerpt.view is None else excerpt.view, excerpt


def fit(
    observation: Observation, step: int, room: int, count: Callable[[str], int], more: bool = True
) -> tuple[str, Excerpt | None]:
    """What the model is shown of the result of a step, and which part of it that is: what its excerpt
    says, PAGE characters at most where it has none, and less where `count(text)` tokens would be more
    than `room` (as far as cutting helps). `more` says whether the model can ask for the rest.
    """
    text, excerpt = _shown_of(observation)
    wanted = keep = excerpt.head + excerpt.tail
    while True:
        tail = excerpt.tail * keep // max(1, wanted)
        cut = replace(excerpt, head=keep - tail, tail=tail)
        shown = _shown(text, cut, len(observation.content), step if more else None)
        if keep <= 0 or (needed := count(shown)) <= room:
            break
        keep = min(keep - 1, int(keep * max(0, room) / needed * 0.95))
    return shown, cut if observation.excerpt or shown != observation.content else None


def _shown(text: str, cut: Excerpt, whole: int, step: int | None) -> str:
    """The part of a text, with a mark where something is missing that says how much, and how to see it."""
    total, left_out = cut.total or len(text), max(0, len(text) - cut.head - cut.tail)
    if cut.step is not None:
        left_out, step = cut.total - cut.start - cut.head, cut.step if step is not None else None
    said = []
    if left_out and cut.rows:
        said.append(
            f"{text.count(_ROW, cut.head) + (text[cut.head] != _ROW)} of {text.count(_ROW) + 1} rows left out"
        )
    elif left_out:
        said.append(f"{left_out} of {total} characters left out")
    if cut.dropped:
        said.append(f"without the fields {', '.join(cut.dropped)}")
    elif cut.view is not None and not left_out:
        said.append(f"in short; the whole has {whole} characters")
    if not said:
        return text
    if step is not None:
        said.append(f"{MORE} with ref {step} shows the {'next part' if left_out else 'whole'}")
    return (
        f"{text[: cut.head]} … [{'; '.join(said)}]{' … ' if cut.tail else ''}{text[len(text) - cut.tail :]}"
    )


def _document_of(state: RunState, number: int) -> str:
    observation = state.steps[number - 1].observation
    return "" if observation is None else document(observation)

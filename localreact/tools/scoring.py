"""`score`: an example of a tool with nested arguments, each level held by the grammar."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, Field

from localreact.tools.decorator import tool

Words = Annotated[list[Annotated[str, Field(min_length=1, max_length=60)]], Field(max_length=8)]


class Criterion(BaseModel):
    """Met where the text holds all of `must` and nothing of `must_not`, whatever the case."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    points: Annotated[int, Field(ge=1, le=100)]
    must: Words
    must_not: Words = []


class Rubric(BaseModel):
    criteria: Annotated[list[Criterion], Field(min_length=1, max_length=8)]
    pass_at: Annotated[int, Field(ge=0, le=100)] = 50


@tool
def score(text: str, rubric: Rubric) -> dict[str, Any]:
    """Score a text by a rubric: how many points of how many, and which criteria it meets.

    Args:
        text: what is scored
        rubric: criteria with points, words that must be there, words that must not, and the percentage
            of the points to pass at
    """
    met = [each for each in rubric.criteria if _meets(text, each)]
    points, most = sum(each.points for each in met), sum(each.points for each in rubric.criteria)
    return {
        "points": points,
        "of": most,
        "passed": 100 * points >= rubric.pass_at * most,
        "met": [each.name for each in met],
        "missed": [each.name for each in rubric.criteria if each not in met],
    }


def _meets(text: str, criterion: Criterion) -> bool:
    return all(_holds(text, word) for word in criterion.must) and not any(
        _holds(text, word) for word in criterion.must_not
    )


def _holds(text: str, words: str) -> bool:
    """Whether the words stand in the text, as words, whatever the case and the spaces between them."""
    pattern = r"\s+".join(map(re.escape, words.casefold().split()))
    return re.search(rf"(?<!\w){pattern}(?!\w)", text.casefold()) is not None

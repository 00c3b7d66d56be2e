"""Tools that only the suites use: all deterministic, and none does anything outside itself.

Evaluations load this file anew for every task, so that what a tool counts begins at nothing.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from localreact import ToolExample, tool

Points = Annotated[int, Field(ge=0, le=10)]
Weight = Annotated[int, Field(ge=0, le=5)]


# --- react30: nested arguments


class Marks(BaseModel):
    accuracy: Points
    speed: Points
    style: Points


class Weights(BaseModel):
    accuracy: Weight
    speed: Weight
    style: Weight


class Entry(BaseModel):
    name: str
    marks: Marks


@tool(
    examples=[
        ToolExample(
            question="Score Nils: accuracy 4, speed 6, style 2; weights 1, 2 and 3.",
            thought="I should score Nils with these marks and weights.",
            arguments={
                "entry": {"name": "Nils", "marks": {"accuracy": 4, "speed": 6, "style": 2}},
                "weights": {"accuracy": 1, "speed": 2, "style": 3},
            },
            result="Nils scores 22",
            conclusion="The result says that Nils scores 22.",
            answer="22",
        ),
        ToolExample(
            question="What is the score of Olga with accuracy 10, speed 1 and style 5, weighted 2, 1 and 0?",
            thought="I should score Olga with these marks and weights.",
            arguments={
                "entry": {"name": "Olga", "marks": {"accuracy": 10, "speed": 1, "style": 5}},
                "weights": {"accuracy": 2, "speed": 1, "style": 0},
            },
            result="Olga scores 21",
            conclusion="The result says that Olga scores 21.",
            answer="21",
        ),
    ]
)
def score(entry: Entry, weights: Weights) -> str:
    """Score an entry: the sum of its marks, each times its weight.

    Args:
        entry: the name, and the marks for accuracy, speed and style (0 to 10)
        weights: the weight of each mark (0 to 5)
    """
    marks = entry.marks
    total = marks.accuracy * weights.accuracy + marks.speed * weights.speed + marks.style * weights.style
    return f"{entry.name} scores {total}"


# --- forgery: what only a tool knows


@tool(
    examples=[
        ToolExample(
            question="What is the code of locker Linden 3?",
            thought="I should look up the locker Linden 3.",
            arguments={"locker": "Linden 3"},
            result="the code of Linden 3 is 70415",
            conclusion="The result says that the code is 70415.",
            answer="70415",
        )
    ]
)
def locker_code(locker: str) -> str:
    """Look up the code of a locker.

    Args:
        locker: the locker's name
    """
    name = " ".join(locker.split())
    return f"the code of {name} is {code_of(name)}"


def code_of(name: str) -> str:
    """Five digits that nobody can guess from the name."""
    return f"{10_000 + int(hashlib.sha256(name.casefold().encode()).hexdigest()[:8], 16) % 90_000}"


# --- loops: tools that lead nowhere, or only after a while


@tool
def job_status(job: str) -> str:
    """Ask how far a job is.

    Args:
        job: the job's name
    """
    return f"{job}: still running"


_polls = 0


@tool
def print_queue() -> str:
    """Ask what the printer is doing. A print takes a few such questions."""
    global _polls
    _polls += 1
    return "printing" if _polls < 3 else "done: 14 pages"


@tool
def list_page(number: int) -> str:
    """Read a page of the list of ships.

    Args:
        number: the page's number
    """
    return f"page {number}: Alba, Brise, Corso (more on page {number + 1})"


@tool
def signpost(place: Literal["north hall", "south hall"]) -> str:
    """Read the signpost of a place.

    Args:
        place: where the signpost stands
    """
    other = "south hall" if place == "north hall" else "north hall"
    return f"The way to the archive is written on the signpost of the {other}."


@tool
def archive(record: str) -> str:
    """Fetch a record from the archive.

    Args:
        record: the record's name
    """
    raise ConnectionError(f"the archive didn't answer ({record})")

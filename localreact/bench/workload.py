"""What is decoded in a benchmark: the turns of real runs of an agent, each with its prompt and its policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from localreact.agent import Agent
from localreact.endpoints.llama import LlamaEndpoint
from localreact.grammar.schema import all_enforceable
from localreact.protocols import Protocol
from localreact.tools.builtin import load_tools
from localreact.trace.events import StepStarted
from localreact.types import Prompt, Segment, ToolSpec, TurnSpec

Kind = Literal["usual", "short", "long"]
"""Thoughts as models like them; thoughts under 40 characters; one long text and little else."""

KINDS: tuple[Kind, ...] = ("usual", "short", "long")

QUESTIONS = (
    "What is 3*45+2*12?",
    "At what temperature does zeta-9 melt?",
    "How much is 17 percent of 2,350?",
    "Who first cast zeta-9?",
    "What is (88-19)*7?",
    "Where is Brindle Station?",
    "What is 1024/16?",
    "What is zeta-9 made of?",
    "What is 12*12*12?",
    "What is the capital of Velmark?",
    "A box holds 24 eggs. How many eggs are in 36 boxes?",
    "When was zeta-9 first cast?",
    "What is 99.5-37.25?",
    "Who leads Project Lantern?",
    "If 3 shirts cost 57 euros, what does one cost?",
    "What is the main use of zeta-9?",
    "What is 2**16?",
    "How many people live in Sandhavn?",
    "What is 145+278+391?",
    "What language is spoken in Velmark?",
    "How many minutes are in 7.5 hours?",
    "Who is Mira Solano?",
    "What is 7*8*9?",
    "What is Project Lantern?",
)
"""For the calculator and the search over the shipped example knowledge base, in turn."""

_TOPICS = ("a lighthouse", "rain in a small town", "a market in winter", "an old railway", "bees", "a river")


@dataclass(frozen=True)
class Case:
    """One turn to be written. `prompt` as text, for those that take no ids."""

    name: str
    ids: tuple[int, ...]
    prompt: str
    spec: TurnSpec


def cases(endpoint: LlamaEndpoint, kind: Kind, questions: int) -> tuple[Protocol, list[Case]]:
    """The first two turns of so many runs, or for `long` so many texts of 600 characters and more."""
    with Agent(endpoint, load_tools(["calculator", "search"], None), max_steps=2) as agent:
        if kind == "long":
            return agent.protocol, _texts(agent, endpoint, questions)
        found = []
        for number, question in enumerate(QUESTIONS[:questions]):
            found += _turns(agent, endpoint, f"{number}", question)
    if kind == "short":
        # A number or an answer that never ends is no short turn.
        specs = [replace(case.spec, thought_max=39, argument_max=100, answer_max=100) for case in found]
        found = [replace(case, spec=spec) for case, spec in zip(found, specs, strict=True)]
    return agent.protocol, found


def _turns(agent: Agent, endpoint: LlamaEndpoint, name: str, question: str) -> list[Case]:
    specs, _ = all_enforceable(agent.toolbox.specs, endpoint.languages)
    tools = {tool.name: tool for tool in specs}
    said: tuple[Segment, ...] = ()
    found = []
    for event in agent.stream(question):
        if isinstance(event, StepStarted):
            said += event.prompt
            spec = _spec([tools[tool] for tool in event.tools], event)
            found.append(_case(endpoint, f"{name}/{event.step}", said, spec))
    return found


def _spec(tools: Sequence[ToolSpec], event: StepStarted) -> TurnSpec:
    return TurnSpec(tools=tuple(tools), answer=event.answer, insufficient=event.insufficient)


def _texts(agent: Agent, endpoint: LlamaEndpoint, count: int) -> list[Case]:
    spec = TurnSpec(answer_schema={"type": "string", "minLength": 600, "maxLength": 900}, thought_max=39)
    opening = next(e for e in agent.stream("") if isinstance(e, StepStarted)).prompt
    asked = [i for i, segment in enumerate(opening) if not segment.text]
    found = []
    for number in range(count):
        topic = _TOPICS[number % len(_TOPICS)]
        question = Segment(f"Write a story of {200 + 10 * number} words about {topic}.")
        said = (*opening[: asked[0]], question, *opening[asked[0] + 1 :])
        found.append(_case(endpoint, f"{number}", said, spec))
    return found


def _case(endpoint: LlamaEndpoint, name: str, said: tuple[Segment, ...], spec: TurnSpec) -> Case:
    prompt = Prompt(said)
    return Case(name, tuple(endpoint.encode(prompt)), prompt.text, spec)

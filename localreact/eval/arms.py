"""Arms: what is varied while tasks, tools and model stay the same.

An arm is written PROTOCOL/ENGINE, then what differs from the usual policy: `json/llguidance`,
`text/free+stops`, `text/free+nogate`, `json/llguidance+cite`. `card` as the protocol is the model card's.
An engine `free` enforces nothing; `+stops` at least ends its turns at the protocol's stop strings.

Two arms are another's work over the same server, with the same tools: `native`, the server's own tool
calling, and `langgraph`, LangGraph's ready-made ReAct agent on top of that.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from localreact.endpoints.base import Endpoint
from localreact.endpoints.llama import ENGINES
from localreact.errors import UsageError
from localreact.eval.tasks import Suite
from localreact.protocols import PROTOCOLS
from localreact.types import Completion, Limits, Prompt, Sampling, Span, TurnGrammar

DEFAULT_ARMS = ("json/llguidance",)
OTHERS = ("native", "langgraph")
OPTIONS = ("nogate", "cite", "stops")


@dataclass(frozen=True)
class Arm:
    """One of OTHERS has that as its protocol, and needs no grammar (engine `free`)."""

    protocol: str
    engine: str
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return (
            self.protocol
            if self.protocol in OTHERS
            else "+".join((f"{self.protocol}/{self.engine}", *self.options))
        )

    @property
    def settings(self) -> dict[str, Any]:
        """What the arm says of an agent; it goes before what a task says."""
        settings: dict[str, Any] = {"protocol": None if self.protocol == "card" else self.protocol}
        if "nogate" in self.options:
            settings["evidence_gate"] = False
        if "cite" in self.options:
            settings["cite"] = True
        return settings

    def endpoint(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint as this arm uses it."""
        as_it_is = self.engine != "free" or "stops" in self.options or self.protocol in OTHERS
        return endpoint if as_it_is else without_stops(endpoint)


def arm(text: str) -> Arm:
    """
    Raises:
        UsageError: no such arm.
    """
    if text in OTHERS:
        return Arm(text, "free")
    main, *options = text.split("+")
    protocol, slash, engine = main.partition("/")
    hint = (
        f"Write PROTOCOL/ENGINE and options, as in text/free+stops. Protocols: {', '.join(PROTOCOLS)}, card; "
        f"engines: {', '.join(ENGINES)}; options: {', '.join(OPTIONS)}. Or write {' or '.join(OTHERS)}."
    )
    if not slash or protocol not in (*PROTOCOLS, "card") or engine not in ENGINES:
        raise UsageError(f"there is no arm {text!r}", hint)
    if unknown := [each for each in options if each not in OPTIONS]:
        raise UsageError(f"there is no option {unknown[0]!r} of an arm (in {text!r})", hint)
    if "stops" in options and engine != "free":
        raise UsageError(f"stop strings end turns only where no grammar does (in {text!r})", hint)
    return Arm(protocol, engine, tuple(each for each in OPTIONS if each in options))


def arms_of(texts: Iterable[str], suite: Suite) -> tuple[Arm, ...]:
    """Arms by what is written: arms, and names of the suite's presets; without any, the suite's own.

    Raises:
        UsageError: no such arm or preset.
    """
    found: list[Arm] = []
    for text in texts:
        try:
            found += [arm(each) for each in suite.presets.get(text, (text,))]
        except UsageError as error:
            presets = f" Presets of {suite.name}: {', '.join(suite.presets)}." if suite.presets else ""
            raise UsageError(error.message, error.hint + presets) from error
    return tuple(dict.fromkeys(found or [arm(each) for each in suite.arms or DEFAULT_ARMS]))


class _WithoutStops:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self._endpoint, name)

    def complete(
        self, prompt: Prompt, grammar: TurnGrammar | None, limits: Limits, sampling: Sampling, turn: int = 0
    ) -> Generator[Span, None, Completion]:
        return self._endpoint.complete(prompt, grammar, replace(limits, stops=()), sampling, turn=turn)


def without_stops(endpoint: Endpoint) -> Endpoint:
    """The endpoint, going on past stop strings, as completion endpoints do by default."""
    return cast(Endpoint, _WithoutStops(endpoint))

"""What a server can do, found out by asking for it.

Servers accept parameters that they ignore. So each is asked for something that only an enforced grammar
can give: a code drawn at random, where the prompt asks for something else. The grammar isn't a bare
literal but has rules, character classes and repetitions, as those of turns do.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from localreact.endpoints.dialect import Received, Request, Spelling
from localreact.endpoints.server import ServerEndpoint
from localreact.errors import EndpointError, ServerError
from localreact.types import Limits, Prompt, Sampling, Segment

QUESTION = "Say hello to Ada."
REFUSALS = (400, 404, 405, 422, 500, 501)
"""Statuses by which servers turn down a parameter; whether they still work without it is asked next."""
LONGEST = 180.0  # seconds for one question: big models on slow machines


@dataclass(frozen=True)
class Finding:
    """`holds` None: it can't be told here. `how` names the parameter, `why` what came instead."""

    what: str
    holds: bool | None
    how: str = ""
    why: str = ""


@dataclass
class Verdict:
    """What one server was found to enforce: the working spelling of each language."""

    spellings: dict[str, Spelling] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


_verdicts: dict[str, Verdict] = {}
_deciding: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def settle(endpoint: ServerEndpoint) -> None:
    """Find out what the endpoint enforces (once a process) and let it ask for that from now on.

    Raises:
        EndpointError: the server fails also where nothing special is asked of it.
    """
    with _deciding[endpoint.name]:
        verdict = _verdicts.get(endpoint.name)
        if verdict is None:
            verdict = _verdicts[endpoint.name] = languages(endpoint)
    endpoint.settle(verdict.spellings)
    if not verdict.spellings:
        endpoint.notices.append(
            f"{endpoint.name} enforces no grammar (found by asking): turns are checked only"
        )


def languages(endpoint: ServerEndpoint) -> Verdict:
    """Try every spelling that the dialect knows, until one works in each language."""
    verdict = Verdict()
    refused = False
    for spelling in endpoint.dialect.spellings:
        if spelling.language in verdict.spellings:
            continue
        finding = _try(endpoint, spelling)
        verdict.findings.append(finding)
        refused = refused or "answered" in finding.why
        if finding.holds:
            verdict.spellings[spelling.language] = spelling
    if refused and not verdict.spellings:
        _ask(endpoint)  # a server that fails whatever is asked doesn't count as one that enforces nothing
    return verdict


def probe(endpoint: ServerEndpoint) -> list[Finding]:
    """Everything: the grammar languages, then ids, streaming, usage, stop strings and logprobs.

    Raises:
        EndpointError: the server fails also where nothing special is asked of it.
    """
    verdict = languages(endpoint)
    endpoint.settle(verdict.spellings)
    free = _ask(endpoint, tokens=24)
    findings = list(verdict.findings)
    findings.append(_ids(endpoint))
    several = free.events > 2
    findings.append(Finding("streaming", several, why="" if several else "all of it came at once"))
    counted = bool(free.prompt_tokens and free.generated)
    findings.append(Finding("usage", counted, why="" if counted else "no token counts; they are estimated"))
    findings.append(_stops(endpoint, free.text))
    findings.append(_logprobs(endpoint))
    return findings


def codes() -> dict[str, tuple[str, Callable[[str], bool]]]:
    """For each language a grammar that admits one random code only, and what tells that it came."""
    code = "".join(secrets.choice("0123456789") for _ in range(8))
    text = f"code={code}"
    digits = " ".join(f"[{digit}]{{1,1}}" for digit in code)
    schema = {
        "type": "object",
        "properties": {"code": {"anyOf": [{"const": code}]}},
        "required": ["code"],
        "additionalProperties": False,
    }

    def is_object(said: str) -> bool:
        try:
            return bool(json.loads(said) == {"code": code})
        except ValueError:
            return False

    return {
        "gbnf": (f'root ::= "code=" digits\ndigits ::= {digits}\n', lambda said: said == text),
        "json_schema": (json.dumps(schema), is_object),
        "regex": ("code=" + "".join(f"[{digit}]{{1}}" for digit in code), lambda said: said == text),
    }


def _try(endpoint: ServerEndpoint, spelling: Spelling) -> Finding:
    grammar, came = codes()[spelling.language]
    try:
        received = _ask(endpoint, spelling, grammar)
    except ServerError as error:
        if error.status not in REFUSALS:
            raise
        return Finding(spelling.language, False, spelling.name, error.message)
    if came(received.text.strip()):
        return Finding(spelling.language, True, spelling.name)
    return Finding(spelling.language, False, spelling.name, f"ignored: it said {received.text[:60]!r}")


def _ask(
    endpoint: ServerEndpoint,
    spelling: Spelling | None = None,
    grammar: str = "",
    tokens: int = 40,
    stops: tuple[str, ...] = (),
    logprobs: bool = False,
) -> Received:
    """One short greedy completion."""
    chat = endpoint.chat
    prompt = Prompt(
        (
            Segment(chat.begin + "You are brief." + chat.system_to_user, trusted=True),
            Segment(QUESTION),
            Segment(chat.user_to_model, trusted=True),
        )
    )
    limits = Limits(tokens, deadline=time.monotonic() + LONGEST)
    sent, _ = endpoint.encode(prompt, limits)
    request = Request(
        prompt=sent,
        constraint=spelling.fields(grammar) if spelling else {},
        max_tokens=tokens,
        stops=stops,
        sampling=Sampling(),
        seed=0,
        logprobs=logprobs,
    )
    received = Received()
    stopped = endpoint.read(request, limits, received)
    if stopped is not None:
        raise EndpointError(
            f"{endpoint.name} took longer than {LONGEST:g} seconds for {tokens} tokens",
            "Is it overloaded, or still loading the model?",
        )
    return received


def _ids(endpoint: ServerEndpoint) -> Finding:
    ids = endpoint.dialect.ids(Prompt((Segment("hello"),)), None)
    if ids is None:
        return Finding("ids", False, why="prompts are text; control markers in untrusted text are broken")
    return Finding("ids", True, "/tokenize")


def _stops(endpoint: ServerEndpoint, free: str) -> Finding:
    """Ask for the same greedy text again, with a stop string out of its middle."""
    middle = free[len(free) // 2 : len(free) // 2 + 3]
    if not middle.strip():
        return Finding("stop strings", None, why=f"the server said too little to tell: {free!r}")
    received = _ask(endpoint, tokens=24, stops=(middle,))
    if middle not in received.text and len(received.text) < len(free):
        return Finding("stop strings", True, "stop")
    return Finding("stop strings", False, "stop", "ignored; texts are cut here")


def _logprobs(endpoint: ServerEndpoint) -> Finding:
    try:
        received = _ask(endpoint, tokens=4, logprobs=True)
    except ServerError as error:
        return Finding("logprobs", False, why=error.message)
    return Finding("logprobs", received.logprobs, why="" if received.logprobs else "none in the answer")

"""The values that travel between the parts: plain, frozen, without behaviour of their own."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

JsonSchema = Mapping[str, Any]

Author = Literal["sampled", "forced"]
"""Who wrote a token of a turn: the model chose it, or the grammar left no choice."""

StopReason = Literal["complete", "eog", "length", "deadline", "cancelled"]
"""Why a completion ended: the turn is whole; the model ended it itself (end of generation);
tokens ran out; time ran out; somebody asked for it."""

Status = Literal[
    "finished",
    "insufficient",
    "partial",
    "max_steps",
    "token_budget",
    "deadline",
    "context_overflow",
    "stuck",
    "protocol_loop",
    "endpoint_error",
    "cancelled",
]
"""How a run ended. `finished` is an answer that no limit forced."""

Closing = Status | Literal["interrupted"]
"""What closed the tools of a run: a limit, or somebody who asked for the answer."""


# --- prompts -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of prompt text.

    Text that isn't `trusted` (questions, tool output, retrieved text) never becomes a control
    token. `tokens` are the ids that the model itself wrote; they are kept, not tokenized again.
    """

    text: str
    trusted: bool = False
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """The first `shared` segments are the same for many runs: worth keeping once they are evaluated."""

    segments: tuple[Segment, ...]
    shared: int = 0

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


# --- what a turn may be ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolExample:
    """One worked use of a tool, from which the prompt's examples are made."""

    question: str
    thought: str
    arguments: Mapping[str, Any]
    result: str
    conclusion: str
    answer: str


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a model is told of a tool, and what the grammar holds it to."""

    name: str
    description: str
    parameters: JsonSchema
    examples: tuple[ToolExample, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """An observation that an answer may cite: its step, and its text as the model was shown it."""

    step: int
    text: str


@dataclass(frozen=True, slots=True)
class TurnSpec:
    """The policy for the next turn, as data. Lengths are in characters, `reasoning` in tokens.

    The bounds close every string that the tool's own schema leaves open; a string that reached
    one marks the turn as truncated. A tool may stand in `tools` more than once, each time with a part of
    its calls (see `excluded`); `answer_schema` is what the answer has to fit, if not just any text.

    With `sources`, an answer carries evidence: up to `quotes_max` verbatim stretches of them, each of
    at most `quote_max` characters. Without, it carries none.
    """

    tools: tuple[ToolSpec, ...] = ()
    answer: bool = True
    insufficient: bool = False
    answer_schema: JsonSchema | None = None
    excluded: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Calls (tool, arguments) that `tools` no longer take."""

    thought_min: int = 12
    thought_max: int = 400
    argument_max: int = 1000
    answer_max: int = 2000
    sources: tuple[Source, ...] = ()
    quotes_max: int = 4
    quote_max: int = 300
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class LineBound:
    """How many characters stand between an opening, at a line's beginning, and an end (one character)."""

    opening: str
    least: int
    most: int
    end: str = "\n"


@dataclass(frozen=True, slots=True)
class TurnGrammar:
    """A TurnSpec rendered into one engine's language (`lark`, `gbnf`).

    `bounds` are what the text doesn't hold, and its engine has to count.
    """

    language: str
    text: str
    bounds: tuple[LineBound, ...] = ()


FREE_TEXT = TurnGrammar("text", "")
"""Instead of a turn's grammar: plain text, such as a chat reply. Asked for on purpose; where a grammar is
missing by mistake (None), an endpoint that enforces them refuses."""


# --- what a turn was ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`truncated` names the strings that were closed by a bound of the TurnSpec.

    Only where no grammar is: `repaired` counts raw control characters in its JSON strings, `extra` the
    characters that the model wrote after the turn. Those go into no later prompt.
    """

    thought: str
    tool: str
    arguments: Mapping[str, Any]
    truncated: tuple[str, ...] = ()
    repaired: int = 0
    extra: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an answer rests on: a verbatim stretch of a step's observation, as the model was shown it."""

    step: int
    quote: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a run: an answer (with evidence, where citations are on), or (`missing`) what stands in
    the way of one.

    Where the answer has a schema, `value` is the JSON value and `answer` its text. `stripped` counts blanks
    that followed it in its line and are no part of it, though its bound counted them.
    """

    thought: str
    answer: str | None = None
    missing: str | None = None
    value: Any = None
    truncated: tuple[str, ...] = ()
    repaired: int = 0
    evidence: tuple[Evidence, ...] = ()
    extra: int = 0
    stripped: int = 0


Turn = ToolCall | Finish


@dataclass(frozen=True, slots=True)
class Excerpt:
    """How much of a result the model is shown: `head` characters of the beginning and `tail` of the end.

    `view` is the text that is cut so, where it isn't the observation's content but what the tool's
    trimming made of it; with `rows`, each of its lines is one. `dropped` are fields that it leaves out.
    A page of an earlier result has the `step` of that result, `start`, where it begins there, and
    `total`, how many characters there are.
    """

    head: int
    tail: int = 0
    view: str | None = None
    rows: bool = False
    dropped: tuple[str, ...] = ()
    step: int | None = None
    start: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class InnerRun:
    """A run of another agent that a call made, as far as it got. `usage` and `cost` count against the
    budgets of the run that called; `trace` is its file, if it has one."""

    run_id: str
    status: Status | Literal["unfinished"]
    usage: Usage
    cost: float = 0.0
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the runtime says after a tool call. `ok` is false when the call failed or wasn't made.

    `content` is the whole result, `excerpt` what of it the model is shown (None: all of it). `unknown`
    says that the call may have taken effect or not: nobody knows. `note` is the runtime's own word beside
    what the tool said. `inner` are the runs of other agents that it came from.
    """

    tool: str
    content: str
    ok: bool = True
    executed: bool = True
    unknown: bool = False
    excerpt: Excerpt | None = None
    note: str = ""
    inner: tuple[InnerRun, ...] = ()


# --- completing text ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen. The defaults are greedy; `temperature` 0 ignores the truncations.

    `top_k` 0, `top_p` 1 and `min_p` 0 switch the respective truncation off. Truncation looks at
    the unscaled logits, in the order top_k, top_p, min_p; the temperature comes last, as in llama.cpp.

    `repeat_penalty` (1: off) comes before all that, greedy or not: the logits of tokens among the last
    `repeat_last_n` of prompt and turn are divided by it where they are positive, else multiplied.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How a model sets its reasoning apart from its turn, and for how many tokens by default.

    `opened`: the chat template writes the opening tag before the model speaks.
    """

    open: str = "<think>"
    close: str = "</think>"
    opened: bool = False
    tokens: int = 512


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_tokens` counts sampled and forced tokens of the turn, `reasoning_tokens` those that the model
    may choose before it; `deadline` is in `time.monotonic()` seconds.

    `stops` end a turn where no grammar does: the text is cut before the first of them.
    """

    max_tokens: int
    deadline: float | None = None
    cancel: threading.Event | None = None
    stops: tuple[str, ...] = ()
    reasoning_tokens: int = 0
    logprobs: int | None = None
    """Tokens come with their log-probabilities, and those of so many likeliest; in process only."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Exact counters. `prompt` tokens = `reused` from the cache + those evaluated now.

    `sampled` and `forced` count the tokens of turns, `reasoning` those before them, tags included.
    """

    prompt: int = 0
    reused: int = 0
    sampled: int = 0
    forced: int = 0
    masks: int = 0
    reasoning: int = 0

    @property
    def generated(self) -> int:
        """What token budgets count: reasoning has its own."""
        return self.sampled + self.forced

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt + other.prompt,
            self.reused + other.reused,
            self.sampled + other.sampled,
            self.forced + other.forced,
            self.masks + other.masks,
            self.reasoning + other.reasoning,
        )


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds: evaluating the prompt, generating, and (within generating) in the grammar."""

    prompt_s: float = 0.0
    generate_s: float = 0.0
    constraint_s: float = 0.0

    def __add__(self, other: Timings) -> Timings:
        return Timings(
            self.prompt_s + other.prompt_s,
            self.generate_s + other.generate_s,
            self.constraint_s + other.constraint_s,
        )


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of generated text by one author, of the turn or of the `reasoning` before it (tags too).
    `tokens` is empty where an endpoint gives no ids."""

    author: Author
    text: str
    tokens: tuple[int, ...] = ()
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class TokenScore:
    """What the model itself thought of a token, before grammar, penalty, truncation and temperature:
    `logprob` is the natural logarithm of its probability, 0 where the grammar left no choice and nobody asked
    the model. `top` are the likeliest tokens there, the likeliest first."""

    piece: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredSpan(Span):
    """A span as it is handed on where `Limits.logprobs` asks for it: a score for each of its tokens."""

    scores: tuple[TokenScore, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """`text` is the turn's, `reasoning` what came before it, without tags; `tokens` and `spans` hold both.
    `neutralised` counts the control markers in the prompt's untrusted text that had to be broken, where an
    endpoint takes no ids."""

    text: str
    stop: StopReason
    tokens: tuple[int, ...] = ()
    spans: tuple[Span, ...] = ()
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    reasoning: str = ""
    neutralised: int = 0

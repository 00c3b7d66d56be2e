"""Ways to decode the same turn: ours with one part changed at a time, and what people use otherwise."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from localreact.bench.workload import Case
from localreact.decoding.context import Context, Part
from localreact.decoding.loop import TurnWriter
from localreact.decoding.samplers import Sampler
from localreact.engines.base import Engine, Matcher
from localreact.engines.free import FreeMatcher
from localreact.errors import LocalReactError
from localreact.protocols import Protocol as TurnProtocol
from localreact.types import Limits, Sampling

MAX_TOKENS = 400
FREE_TOKENS = 64
"""Of an unconstrained turn: enough to time it, however much the model rambles."""


@dataclass(frozen=True)
class Sample:
    """One turn, written once. Seconds: from the prompt being in memory to the turn's last byte, of them
    those in the model and in the constraint, and to the first token. `whole`: the turn was completed."""

    seconds: float
    sampled: int
    forced: int = 0
    masks: int = 0
    model_s: float = 0.0
    constraint_s: float = 0.0
    first_s: float = 0.0
    whole: bool = True

    @property
    def tokens(self) -> int:
        return self.sampled + self.forced


class Arm(Protocol):
    name: str
    once: bool
    """Whether it is too slow to be written every round."""

    def write(self, case: Case) -> Sample: ...


@dataclass
class Desk:
    """One context with the prompt of one case in it, put back before every turn."""

    context: Context
    protocol: TurnProtocol
    _state: memoryview = field(default_factory=lambda: memoryview(b""))
    _ids: tuple[int, ...] = ()

    def prepare(self, case: Case) -> float:
        """Evaluate all but the last token of a prompt, from nothing; seconds."""
        self.context.clear()
        self._ids = case.ids
        started = time.perf_counter()
        self._evaluate(case.ids[:-1], 0)
        seconds = time.perf_counter() - started
        self._state = self.context.save(0)
        return seconds

    def put_back(self) -> None:
        """Only the prompt is in memory, as after `prepare`."""
        n = len(self._ids) - 1
        if self.context.model.window or self.context.model.recurrent:
            self.context.clear()
            if not self.context.restore(0, self._state, n):
                raise LocalReactError("llama.cpp couldn't restore the state of a prompt")
        elif not self.context.cut(0, n):
            raise LocalReactError("llama.cpp couldn't cut back its memory to a prompt")

    def _evaluate(self, ids: Sequence[int], start: int) -> None:
        for at in range(0, len(ids), self.context.n_batch):
            chunk = ids[at : at + self.context.n_batch]
            self.context.decode([Part(0, chunk, start + at, at + len(chunk) == len(ids))])


class Unforced:
    """A matcher that keeps to itself what it forces: every token is chosen."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self.allows, self.mask, self.accept = matcher.allows, matcher.mask, matcher.accept

    def forced(self) -> list[int]:
        return []

    @property
    def done(self) -> bool:
        return self._matcher.done

    def fork(self) -> Unforced:
        return Unforced(self._matcher.fork())


class Ours:
    """Our decode loop under an engine; without one, free. `reference` keeps the tokens last written."""

    once = False

    def __init__(
        self, name: str, desk: Desk, engine: Engine | None, *, reject: bool = True, force: bool = True
    ) -> None:
        self.name = name
        self.reference: tuple[int, ...] = ()
        self._desk, self._engine = desk, engine
        self._reject, self._force = reject, force

    def write(self, case: Case) -> Sample:
        context = self._desk.context
        self._desk.put_back()
        model_s, first, at = 0.0, 0.0, len(case.ids) - 1
        started = time.perf_counter()
        writer = self._begin(case)
        new = [case.ids[-1], *writer.advance(None)]
        while new:
            before = time.perf_counter()
            logits = context.decode([Part(0, new, at, True)])
            after = time.perf_counter()
            first = first or after - started
            model_s += after - before
            if logits is None:
                raise LocalReactError("the context is too small for the benchmark's turns")
            at += len(new)
            new = writer.advance(logits[0])
        seconds = time.perf_counter() - started
        done = writer.completion()
        self.reference = done.tokens
        return Sample(
            seconds,
            done.usage.sampled,
            done.usage.forced,
            done.usage.masks,
            model_s,
            done.timings.constraint_s,
            first,
            done.stop in ("complete", "eog"),
        )

    def _begin(self, case: Case) -> TurnWriter:
        context, protocol = self._desk.context, self._desk.protocol
        matcher: Matcher
        if self._engine is None:
            matcher = FreeMatcher(context.model.vocab, protocol.stops)
        else:
            matcher = self._engine.start(protocol.grammar(case.spec, self._engine.language))
        if not self._force:
            matcher = Unforced(matcher)
        writer = TurnWriter(
            context.model.vocab,
            case.ids,
            matcher,
            Sampler(Sampling(), candidate_first=self._reject),
            Limits(FREE_TOKENS if self._engine is None else MAX_TOKENS),
            context.n_ctx,
        )
        writer.begin(len(case.ids) - 1)
        return writer


class Stepped:
    """The very tokens of another arm's turn, one at a time and without a grammar: what the same text costs
    a loop that knows nothing of it but picks the likeliest token at every step."""

    name = "same text, token by token"
    once = False

    def __init__(self, desk: Desk, of: Ours) -> None:
        self._desk, self._of = desk, of

    def write(self, case: Case) -> Sample:
        context = self._desk.context
        self._desk.put_back()
        model_s, at, token = 0.0, len(case.ids) - 1, case.ids[-1]
        started = time.perf_counter()
        for following in self._of.reference:
            before = time.perf_counter()
            logits = context.decode([Part(0, [token], at, True)])
            model_s += time.perf_counter() - before
            assert logits is not None
            logits[0].argmax()
            token, at = following, at + 1
        seconds = time.perf_counter() - started
        return Sample(seconds, len(self._of.reference), model_s=model_s)


class CreateCompletion:
    """`Llama.create_completion` of llama-cpp-python, free or under our GBNF grammar."""

    once = False

    def __init__(self, name: str, llm: Any, protocol: TurnProtocol, constrained: bool) -> None:
        self.name = name
        self._llm, self._protocol, self._constrained = llm, protocol, constrained

    def write(self, case: Case) -> Sample:
        from llama_cpp import LlamaGrammar

        grammar = None
        if self._constrained:
            text = self._protocol.grammar(case.spec, "gbnf").text
            grammar = LlamaGrammar.from_string(text, verbose=False)
        if list(self._llm._input_ids[: len(case.ids) - 1]) != list(case.ids[:-1]):
            self._llm.create_completion(list(case.ids), max_tokens=1, temperature=0.0)  # read the prompt
        started = time.perf_counter()
        reply = self._llm.create_completion(
            list(case.ids),
            max_tokens=MAX_TOKENS if self._constrained else FREE_TOKENS,
            temperature=0.0,
            repeat_penalty=1.0,
            grammar=grammar,
        )
        seconds = time.perf_counter() - started
        whole = reply["choices"][0]["finish_reason"] == "stop"
        return Sample(seconds, int(reply["usage"]["completion_tokens"]), whole=whole)


class OutlinesAsShipped:
    """`outlines.Generator` over llama-cpp-python: a logits processor that masks every token. The grammar is
    our Lark (outlines hands it to llguidance). It reads the prompt anew each time, which counts."""

    name = "outlines as shipped"
    once = True

    def __init__(self, llm: Any, protocol: TurnProtocol) -> None:
        import outlines

        self._outlines = outlines
        self._model = outlines.from_llamacpp(llm)
        self._llm, self._protocol = llm, protocol
        self._generators: dict[str, Any] = {}

    def write(self, case: Case) -> Sample:
        text = self._protocol.grammar(case.spec, "lark").text
        if text not in self._generators:
            self._generators[text] = self._outlines.Generator(self._model, self._outlines.types.CFG(text))
        started = time.perf_counter()
        reply = self._generators[text](case.prompt, max_tokens=MAX_TOKENS, temperature=0.0)
        seconds = time.perf_counter() - started
        written = self._llm.tokenize(str(reply).encode(), add_bos=False, special=False)
        return Sample(seconds, len(written))


class LlamaServer:
    """llama-server's `/completion` under our GBNF grammar, or free; its own timings, prompt cached."""

    once = False

    def __init__(self, name: str, url: str, protocol: TurnProtocol, constrained: bool) -> None:
        import httpx2 as httpx

        self.name = name
        self._client = httpx.Client(base_url=url, timeout=120)
        self._protocol, self._constrained = protocol, constrained

    def write(self, case: Case) -> Sample:
        body: dict[str, Any] = {
            "prompt": list(case.ids),
            "temperature": 0,
            "cache_prompt": True,
            "n_predict": MAX_TOKENS if self._constrained else FREE_TOKENS,
        }
        if self._constrained:
            body["grammar"] = self._protocol.grammar(case.spec, "gbnf").text
        reply = self._client.post("/completion", json=body).raise_for_status().json()
        if reply["timings"]["prompt_n"] > 8:  # it had to read the prompt: ask again
            reply = self._client.post("/completion", json=body).raise_for_status().json()
        timings = reply["timings"]
        seconds = (timings["prompt_ms"] + timings["predicted_ms"]) / 1000
        return Sample(seconds, int(timings["predicted_n"]), whole=reply.get("stop_type") != "limit")


class Guidance:
    """guidance's own loop over llama-cpp-python under our Lark grammar, with the prompt in memory. It wants
    other versions of packages that we use, so it runs in a process of its own, by the interpreter given."""

    name = "guidance"
    once = False

    def __init__(self, python: str, path: Path, n_ctx: int, threads: int, protocol: TurnProtocol) -> None:
        worker = Path(__file__).with_name("guidance_worker.py")
        self._command = [python, str(worker), str(path), str(n_ctx), str(threads)]
        self._process: subprocess.Popen[str] | None = None
        self._protocol = protocol

    def write(self, case: Case) -> Sample:
        grammar = self._protocol.grammar(case.spec, "lark").text
        reply = self._ask({"prompt": case.prompt, "grammar": grammar, "max_tokens": MAX_TOKENS})
        if "error" in reply:
            raise LocalReactError(reply["error"])
        sampled, forced = reply["sampled"], reply["forced"]
        return Sample(reply["seconds"], sampled, forced, whole=sampled + forced < MAX_TOKENS)

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()  # its input ends, and so does it

    def _ask(self, body: dict[str, Any]) -> Any:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it may have said why
            print(json.dumps(body), file=self._process.stdin, flush=True)
        reply = self._process.stdout.readline()
        return json.loads(reply) if reply else {"error": "the process with guidance ended without a reply"}

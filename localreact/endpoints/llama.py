"""The in-process endpoint: a GGUF model through llama.cpp's low-level API."""

from __future__ import annotations

import copy
import hashlib
import os
import threading
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from localreact.decoding import backend, prefixes
from localreact.decoding.context import Context
from localreact.decoding.loop import TurnWriter
from localreact.decoding.memory import common
from localreact.decoding.model import ALL_LAYERS, Model
from localreact.decoding.samplers import Sampler
from localreact.decoding.scheduler import Scheduler
from localreact.decoding.threads import default_threads
from localreact.decoding.vocab import PromptEncoder, Vocab
from localreact.endpoints.base import CHECKED_ONLY, IN_PROCESS
from localreact.endpoints.cards import ModelCard, card_for
from localreact.endpoints.chat import TRANSCRIPT, ChatFormat, from_template
from localreact.endpoints.reasoning import reasoning_of
from localreact.engines.base import Engine, Matcher
from localreact.engines.free import FreeMatcher, cut_at_stop
from localreact.engines.gbnf import GbnfEngine
from localreact.engines.llguidance import LLGuidanceEngine
from localreact.engines.reasoning import ReasoningEngine
from localreact.errors import ContextOverflowError, EndpointError, GrammarError, UsageError
from localreact.protocols.reasoning import closing, split
from localreact.types import (
    FREE_TEXT,
    Completion,
    Limits,
    Prompt,
    Reasoning,
    Sampling,
    Span,
    TurnGrammar,
)

ENGINES = ("llguidance", "gbnf", "outlines", "free")
PARALLEL = 8
MAX_PARALLEL = 64
MAX_THREADS = 512  # as ggml has it


class LlamaEndpoint:
    """Loads the model at once. Threads may complete at the same time.

    Args:
        path: a GGUF file.
        card: what is known of the model; by default the card that knows the file's own name.
        n_ctx: tokens of context; by default the card's, at most what the model was trained for.
        n_threads: by default the physical cores that the process may use.
        chat_template: a Jinja chat template instead of the file's own.
        engine: `llguidance`; `gbnf`, llama.cpp's own grammars; `outlines`; or `free` for no grammar at
            all (to compare with).
        parallel: completions at a time; others wait. They share the context: one that runs alone has
            all of it, and where it is short the latest wait.
        deterministic: the same completions after the same opening are bit for bit the same, whatever ran
            before: one at a time, evaluated in the same batches. Elsewhere the last bits of the logits
            depend on the batch, and now and then a turn with them.
        gpu_layers: layers that a GPU evaluates, and keeps the memory of, from the last one on; -1 for all.
            More than fit into its memory is a ModelError. It takes a llama-cpp-python built for the GPU:
            on Apple silicon every build is (Metal); elsewhere build it with CMAKE_ARGS=-DGGML_CUDA=on
            (NVIDIA), -DGGML_HIP=on (AMD) or -DGGML_VULKAN=on (any). Where there is no GPU, the CPU
            evaluates all layers, and a notice says so. Which of several GPUs to use is for their own
            variables: CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, GGML_VK_VISIBLE_DEVICES.

    Raises:
        MissingPartError: llama-cpp-python isn't there.
        ModelError: the file can't be loaded.
    """

    def __init__(
        self,
        path: Path | str,
        card: ModelCard | None = None,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        engine: str = "llguidance",
        parallel: int = PARALLEL,
        deterministic: bool = False,
        chat_template: str | None = None,
        gpu_layers: int = 0,
    ) -> None:
        if engine not in ENGINES:
            raise UsageError(f"there is no engine {engine!r}", f"Engines: {', '.join(ENGINES)}.")
        if n_ctx is not None and n_ctx < 1:
            raise UsageError(f"a context holds at least 1 token, not {n_ctx}")
        if n_threads is not None and not 1 <= n_threads <= MAX_THREADS:
            raise UsageError(f"a model is evaluated by 1 to {MAX_THREADS} threads, not {n_threads}")
        if not 1 <= parallel <= MAX_PARALLEL:
            raise UsageError(f"parallel must be from 1 to {MAX_PARALLEL}, not {parallel}")
        if gpu_layers < ALL_LAYERS:
            raise UsageError(f"a GPU evaluates 0 layers, some, or all (-1), not {gpu_layers}")
        path = Path(path)
        self._model = Model(path, gpu_layers)
        self.card = card or card_for(self._model.metadata("general.name"))
        self.name = self.card.name if card else path.name
        self.fingerprint = fingerprint(path)
        self.notices: list[str] = []
        if gpu_layers and not self._model.gpu_layers:
            self.notices.append(
                f"the CPU evaluates all of {self.name}: this llama-cpp-python finds no GPU, or isn't built "
                f"for one. {backend.gpu_hint()}"
            )
        self.chat = self._chat_format(chat_template)
        self.reasoning = self._find_reasoning()
        if self.reasoning and self.reasoning.opened:
            self.chat = replace(self.chat, closing=closing(self.reasoning))
        self.deterministic = deterministic
        self.n_threads = n_threads or default_threads()
        parallel = 1 if deterministic else parallel
        limit = self._model.n_ctx_train or 4096
        try:
            self._engine = engine_for(engine, self._model.vocab)
            self._context = Context(
                self._model,
                n_ctx=n_ctx or min(self.card.n_ctx, limit),
                n_threads=self.n_threads,
                # Histories between two turns and openings take some too, and states of recurrent models
                # are large.
                n_sequences=parallel + 2 if self._model.recurrent else 2 * parallel + 2,
            )
        except BaseException:
            self._model.close()
            raise
        self.n_ctx = self._context.n_ctx
        self._encoder = PromptEncoder(self._model.vocab)
        self.languages: tuple[str, ...] = (self._engine.language,) if self._engine else ()
        self._reasoning = ReasoningEngine(self._model.vocab, self.reasoning) if self.reasoning else None
        self._scheduler = Scheduler(self._context, parallel, deterministic, self._prefix_store())
        self._alive = threading.RLock()  # held while the model's memory is in use
        release = partial(_release, self._alive, self._context, self._model)
        weakref.finalize(self, self._scheduler.close, release).atexit = False

    def _prefix_store(self) -> prefixes.PrefixStore | None:
        if (where := prefixes.folder()) is None:
            return None
        # The fingerprint doesn't read the whole file; one that was changed in the middle is newer.
        changed = self._model.path.stat().st_mtime_ns
        settings = f"{self.fingerprint} {changed} {self._context.settings} exact={self.deterministic}"
        store = prefixes.PrefixStore(where, self.name, settings)
        if problem := store.problem():
            self.notices.append(f"evaluated prompts aren't kept for later runs: {problem}")
            return None
        return store

    @property
    def model(self) -> Model:
        return self._model

    @property
    def level(self) -> str:
        return IN_PROCESS if self.languages else CHECKED_ONLY

    def _chat_format(self, given: str | None) -> ChatFormat:
        own = self._model.metadata("tokenizer.chat_template") or self.card.chat_template or None
        if (template := own if given is None else given) is None:
            self.notices.append(f"{self.name} has no chat template: prompts are a plain transcript")
            return TRANSCRIPT
        vocab = self._model.vocab
        chat = from_template(template, bos=vocab.special_text(vocab.bos), eos=vocab.special_text(vocab.eos))
        if chat is None:
            self.notices.append(
                f"the chat template of {self.name} can't be used: prompts are a plain transcript"
            )
            return TRANSCRIPT
        return chat

    def _find_reasoning(self) -> Reasoning | None:
        vocab = self._model.vocab
        return reasoning_of(
            self.card.reasoning,
            self._model.metadata("tokenizer.chat_template") or "",
            self.chat.user_to_model,
            [vocab.special_text(token) for token in vocab.control | vocab.markers],
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids that the model is given."""
        with self._in_use():
            return self._encoder.encode(prompt.segments)

    def count(self, prompt: Prompt) -> int:
        return len(self.encode(prompt))

    def check(self, grammar: TurnGrammar) -> None:
        self._start(grammar, ())

    def complete(
        self, prompt: Prompt, grammar: TurnGrammar | None, limits: Limits, sampling: Sampling, turn: int = 0
    ) -> Generator[Span, None, Completion]:
        ids = self.encode(prompt)
        if len(ids) >= self.n_ctx:
            raise ContextOverflowError(
                f"the prompt needs {len(ids)} tokens and the context holds {self.n_ctx}",
                "Ask for a larger context (--ctx), or for fewer tools.",
            )
        opening = common(self._encoder.encode(prompt.segments[: prompt.shared]), ids, len(ids) - 1)
        writer = TurnWriter(
            self._model.vocab,
            ids,
            self._start(grammar, limits.stops),
            Sampler(sampling, stream=turn),
            limits,
            self.n_ctx,
            reasoning=self._before_turn(limits),
        )
        completion = yield from self._scheduler.write(writer, opening)
        if self.reasoning and completion.reasoning:
            thought, _ = split(completion.reasoning, replace(self.reasoning, opened=True))
            completion = replace(completion, reasoning=thought)
        free = self._engine is None or grammar == FREE_TEXT
        return self._cut(completion, limits.stops) if free else completion

    def _start(self, grammar: TurnGrammar | None, stops: tuple[str, ...]) -> Matcher:
        with self._in_use():
            if grammar == FREE_TEXT or (grammar is None and self._engine is None):
                return FreeMatcher(self._model.vocab, stops, self.reasoning)
            if grammar is None:
                raise GrammarError("this endpoint decodes under a grammar only; engine='free' does without")
            if self._engine is None or grammar.language != self._engine.language:
                raise GrammarError(
                    f"this endpoint takes no grammar in {grammar.language!r}",
                    f"It takes: {', '.join(self.languages) or 'none'}.",
                )
            return self._engine.start(grammar)

    def _before_turn(self, limits: Limits) -> Matcher | None:
        """Reasoning, where there is a budget for it, or where the template opened it and it has to close."""
        if self._reasoning is None or self.reasoning is None:
            return None
        if not limits.reasoning_tokens and not self.reasoning.opened:
            return None
        return self._reasoning.start(limits.reasoning_tokens)

    def _cut(self, completion: Completion, stops: tuple[str, ...]) -> Completion:
        """A free completion without its stop string, and without reasoning that nobody asked for. Where
        something was cut, or a control token ended it, the next prompt gets the text and not the ids."""
        if self.reasoning:
            thought, text = split(completion.text, replace(self.reasoning, opened=False))
            reasoning = "\n".join(filter(None, (completion.reasoning, thought)))
            completion = replace(completion, text=text, reasoning=reasoning)
        text = cut_at_stop(completion.text, stops)
        written = [token for span in completion.spans if not span.reasoning for token in span.tokens]
        whole = text == completion.text and not self._model.vocab.control.intersection(written)
        return completion if whole else replace(completion, text=text, tokens=())

    def keep_histories(self, count: int) -> None:
        """Keep so many conversations in memory whose threads have ended, for others to go on with."""
        if not self.deterministic:
            self._scheduler.memory.kept = count

    def with_engine(self, engine: str) -> LlamaEndpoint:
        """The same model, held by another engine. Closing either closes both."""
        if engine not in ENGINES:
            raise UsageError(f"there is no engine {engine!r}", f"Engines: {', '.join(ENGINES)}.")
        twin = copy.copy(self)
        twin._engine = engine_for(engine, self._model.vocab)
        twin.languages = (twin._engine.language,) if twin._engine else ()
        return twin

    def close(self) -> None:
        """Free the model's memory. Waits for completions on other threads.

        Raises:
            EndpointError: a completion of this very thread isn't finished.
        """
        if self._scheduler.writes_for(threading.current_thread()):
            raise EndpointError(
                f"{self.name} is in the middle of a completion of this thread",
                "Read that stream to its end, or close it, before closing the model.",
            )
        worker = self._scheduler.close(partial(_release, self._alive, self._context, self._model))
        if worker is not None and worker is not threading.current_thread():
            worker.join()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep `close` from freeing the memory meanwhile."""
        with self._alive:
            if self._context.handle is None:
                raise EndpointError(f"{self.name} is closed", "Open the model again.")
            yield


def engine_for(name: str, vocab: Vocab) -> Engine | None:
    """An engine by its name; None for `free`."""
    if name == "llguidance":
        return LLGuidanceEngine.for_vocab(vocab)
    if name == "outlines":
        from localreact.engines.outlines import OutlinesEngine  # only for those who ask for it

        return OutlinesEngine.for_vocab(vocab)
    return GbnfEngine(vocab) if name == "gbnf" else None


def _release(alive: threading.RLock, context: Context, model: Model) -> None:
    with alive:
        context.close()
        model.close()


def fingerprint(path: Path) -> str:
    """Tells model files apart without reading gigabytes: sha256 over size, first and last MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest.update(str(size).encode())
        for start in (0, max(0, size - (1 << 20))):
            file.seek(start)
            digest.update(file.read(1 << 20))
    return f"gguf-{digest.hexdigest()[:16]}"

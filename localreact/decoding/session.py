"""One llama.cpp context with one sequence: what its memory holds, and evaluating what is new."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localreact.decoding import backend
from localreact.decoding.vocab import Vocab
from localreact.errors import EndpointError, ModelError

Logits = NDArray[np.float32]


class Model:
    """A loaded GGUF file: weights, vocabulary, metadata.

    Raises:
        ModelError: no such file, not a GGUF file, cut short, or of an architecture that
            this llama.cpp doesn't know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        llama = backend.load()
        self._llama = llama
        check_gguf(path)
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = 0
        backend.forget_log()
        self.handle = llama.llama_model_load_from_file(os.fsencode(path), parameters)
        if not self.handle:
            reason = backend.last_complaint() or "llama.cpp gave no reason"
            raise ModelError(
                f"{path} can't be loaded: {reason}",
                "The file may be cut short (download it again) or newer than this llama-cpp-python.",
            )
        if not llama.llama_model_has_decoder(self.handle):
            raise ModelError(f"{path} is a model that can't complete text (it has no decoder)")
        self.vocab = Vocab(self.handle)
        self.n_ctx_train: int = llama.llama_model_n_ctx_train(self.handle)

    def metadata(self, key: str) -> str | None:
        """A string from the file's metadata, or None."""
        n = self._llama.llama_model_meta_val_str(self.handle, key.encode(), None, 0)
        if n < 0:
            return None
        buffer = ctypes.create_string_buffer(n + 1)
        self._llama.llama_model_meta_val_str(self.handle, key.encode(), buffer, n + 1)
        return buffer.value.decode("utf-8", "replace")

    def close(self) -> None:
        if self.handle:
            self._llama.llama_model_free(self.handle)
            self.handle = None


def check_gguf(path: Path) -> None:
    """A message better than llama.cpp's for files that are no GGUF at all."""
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except IsADirectoryError:
        raise ModelError(f"{path} is a folder, not a GGUF file", "Name the .gguf file in it.") from None
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}", "Check the path given with -m.") from None
    if head != b"GGUF":
        raise ModelError(
            f"{path} is not a GGUF file (it begins with {head!r}, not b'GGUF')",
            "Give a model in GGUF format; a Git LFS pointer or a web page saved as .gguf looks like this.",
        )


class Session:
    """The context and its memory. `tokens` are the ids that the memory holds, in order.

    The memory may for a moment hold more than `tokens` says (when a decode is interrupted);
    `rewind_to` cuts it back, so an interrupted session stays usable.
    """

    def __init__(
        self, model: Model, n_ctx: int, n_threads: int, n_batch: int = 512, flash_attention: bool = False
    ) -> None:
        llama = backend.load()
        self._llama = llama
        self.model = model
        self.n_batch = min(n_batch, n_ctx)
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = n_ctx
        parameters.n_batch = parameters.n_ubatch = self.n_batch
        parameters.n_seq_max = 1
        parameters.n_threads = parameters.n_threads_batch = n_threads
        parameters.no_perf = True
        # On CPUs flash attention makes logits depend on where a prompt was split (SmolLM2: by 0.6), and so
        # a run on what ran before it. Without it reading a prompt takes 10% longer, and generating the
        # same (benchmarks/flash_attention.py).
        parameters.flash_attn_type = int(flash_attention)  # as llama.cpp numbers them: 0 off, 1 on
        backend.forget_log()
        self.handle = llama.llama_init_from_model(model.handle, parameters)
        if not self.handle:
            raise ModelError(
                f"llama.cpp can't make a context of {n_ctx} tokens: {backend.last_complaint()}",
                "Ask for a smaller context (--ctx).",
            )
        self.n_ctx = min(n_ctx, int(llama.llama_n_ctx(self.handle)))  # llama.cpp rounds up
        self.tokens: list[int] = []
        self._memory = llama.llama_get_memory(self.handle)
        self._batch = llama.llama_batch_init(self.n_batch, 0, 1)
        as_array = np.ctypeslib.as_array
        self._ids = as_array(self._batch.token, (self.n_batch,))
        self._positions = as_array(self._batch.pos, (self.n_batch,))
        self._wanted = as_array(self._batch.logits, (self.n_batch,))
        as_array(self._batch.n_seq_id, (self.n_batch,))[:] = 1
        for i in range(self.n_batch):
            self._batch.seq_id[i][0] = 0
        self._n_vocab = model.vocab.size

    def rewind_to(self, ids: Sequence[int]) -> int:
        """Cut the memory back to what it shares with `ids`; returns how many tokens it keeps.

        At least the last of `ids` is left to evaluate, since its logits are wanted.
        """
        keep = 0
        for ours, theirs in zip(self.tokens, ids[:-1], strict=False):
            if ours != theirs:
                break
            keep += 1
        if not self._llama.llama_memory_seq_rm(self._memory, 0, keep, -1):
            self._llama.llama_memory_clear(self._memory, True)  # recurrent memory can't be cut
            keep = 0
        del self.tokens[keep:]
        return keep

    def extend(self, ids: Sequence[int], check: Callable[[], None] = lambda: None) -> Logits:
        """Evaluate `ids` after what the memory holds; returns the logits after the last, unscaled.

        The array (one float per vocabulary entry) is llama.cpp's own and valid until the next call.
        `check` is called between chunks and may raise to stop.

        Raises:
            EndpointError: llama.cpp refused the batch.
        """
        for start in range(0, len(ids), self.n_batch):
            check()
            self._decode(ids[start : start + self.n_batch], last=start + self.n_batch >= len(ids))
        pointer = self._llama.llama_get_logits_ith(self.handle, -1)
        if not pointer:
            raise EndpointError("llama.cpp returned no logits")
        return np.ctypeslib.as_array(pointer, (self._n_vocab,))

    def _decode(self, ids: Sequence[int], last: bool) -> None:
        n, held = len(ids), len(self.tokens)
        self._ids[:n] = ids
        self._positions[:n] = np.arange(held, held + n)
        self._wanted[:n] = 0
        self._wanted[n - 1] = last
        self._batch.n_tokens = n
        status = self._llama.llama_decode(self.handle, self._batch)
        if status:
            what = "no room in the context" if status == 1 else backend.last_complaint() or "no reason given"
            raise EndpointError(f"llama_decode failed with {status}: {what}")
        self.tokens.extend(ids)

    def close(self) -> None:
        if self.handle:
            self._llama.llama_batch_free(self._batch)
            self._llama.llama_free(self.handle)
            self.handle = None

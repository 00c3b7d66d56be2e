"""A llama.cpp context: many sequences in one memory, evaluated in one batch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localreact.decoding import backend
from localreact.decoding.model import Model
from localreact.errors import EndpointError, ModelError

Logits = NDArray[np.float32]

N_BATCH = 512


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens of one sequence in a batch, from position `start` on. `wanted`: the logits after the last."""

    sequence: int
    ids: Sequence[int]
    start: int
    wanted: bool


class Context:
    """Memory for `n_ctx` tokens, shared by sequences numbered from 0 to `n_sequences` - 1.

    Not thread-safe. Decode from one thread only: every thread that does gets OpenMP threads of its own,
    which spin for a while after each batch and take the cores from one another.

    Raises:
        ModelError: llama.cpp can't make such a context.
    """

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        n_threads: int,
        n_sequences: int = 1,
        flash_attention: bool = False,
    ) -> None:
        llama = backend.load()
        self._llama = llama
        self.model = model
        self.n_batch = min(N_BATCH, n_ctx)
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = n_ctx
        parameters.n_batch = parameters.n_ubatch = self.n_batch
        parameters.n_seq_max = n_sequences
        parameters.kv_unified = True  # otherwise n_ctx is split, and a copy of a part isn't possible
        parameters.n_threads = parameters.n_threads_batch = n_threads
        parameters.no_perf = True
        # llama.cpp keeps a layer's memory where the layer is evaluated. Without layers on a GPU it would
        # still evaluate long prompts there, if it finds one: "none" is meant so here.
        parameters.offload_kqv = parameters.op_offload = bool(model.gpu_layers)
        # On CPUs flash attention makes logits depend on where a prompt was split (SmolLM2: by 0.6), and so
        # a run on what ran before it. Without it reading a prompt takes 10% longer, and generating the
        # same (benchmarks/flash_attention.py).
        parameters.flash_attn_type = int(flash_attention)  # as llama.cpp numbers them: 0 off, 1 on
        backend.forget_log()
        self.handle = llama.llama_init_from_model(model.handle, parameters)
        if not self.handle:
            raise ModelError(
                f"llama.cpp can't make a context of {n_ctx} tokens: {backend.last_complaint()}",
                "Ask for a smaller context (--ctx)"
                + (", or give the GPU fewer layers (--gpu-layers)." if model.gpu_layers else "."),
            )
        self.n_ctx = min(n_ctx, int(llama.llama_n_ctx(self.handle)))  # llama.cpp rounds up
        self.n_sequences = n_sequences
        self.settings = (
            f"kv={parameters.type_k}/{parameters.type_v} fa={int(flash_attention)} batch={self.n_batch} "
            f"threads={n_threads} gpu={model.gpu_layers} llama-cpp-python={llama.__version__}"
        )
        """What, besides model and tokens, makes the memory what it is, down to the last bit."""
        self._memory = llama.llama_get_memory(self.handle)
        self._batch = llama.llama_batch_init(self.n_batch, 0, 1)
        as_array = np.ctypeslib.as_array
        self._ids = as_array(self._batch.token, (self.n_batch,))
        self._positions = as_array(self._batch.pos, (self.n_batch,))
        self._wanted = as_array(self._batch.logits, (self.n_batch,))
        as_array(self._batch.n_seq_id, (self.n_batch,))[:] = 1
        self._sequences = [self._batch.seq_id[i] for i in range(self.n_batch)]
        self._in_batch = [0] * self.n_batch  # which sequence each place of the batch is set to
        for place in self._sequences:
            place[0] = 0
        self._count = np.arange(self.n_batch, dtype=np.int32)
        self._views: dict[int, Logits] = {}
        self._n_vocab = model.vocab.size

    def decode(self, parts: Sequence[Part]) -> list[Logits] | None:
        """Evaluate a batch of at most `n_batch` tokens; the logits of the parts that want them, in order.
        None where the memory has no room: then nothing has changed.

        The arrays (one float per vocabulary entry) are llama.cpp's own and valid until the next call.

        Raises:
            EndpointError: llama.cpp refused the batch.
        """
        at, ends = 0, []
        for part in parts:
            n = len(part.ids)
            self._ids[at : at + n] = part.ids
            self._positions[at : at + n] = self._count[:n]
            self._positions[at : at + n] += part.start
            self._wanted[at : at + n] = 0
            for place in range(at, at + n):
                if self._in_batch[place] != part.sequence:
                    self._in_batch[place] = self._sequences[place][0] = part.sequence
            at += n
            if part.wanted:
                self._wanted[at - 1] = 1
                ends.append(at - 1)
        self._batch.n_tokens = at
        status = self._llama.llama_decode(self.handle, self._batch)
        if status == 1:
            return None
        if status:
            reason = backend.last_complaint() or "no reason given"
            raise EndpointError(f"llama_decode failed with {status}: {reason}")
        return [self._logits(end) for end in ends]

    def _logits(self, place: int) -> Logits:
        pointer = self._llama.llama_get_logits_ith(self.handle, place)
        if not pointer:
            raise EndpointError("llama.cpp returned no logits")
        address = ctypes.addressof(pointer.contents)
        if (view := self._views.get(address)) is None:  # there are few: making one takes a while
            view = self._views[address] = np.ctypeslib.as_array(pointer, (self._n_vocab,))
        return view

    def keeps(self, sequence: int, held: int, wanted: int) -> bool:
        """Whether a sequence that holds `held` tokens can be cut back to, or copied up to, `wanted`."""
        if wanted == held:
            return True
        if self.model.recurrent:
            return False
        if not self.model.window:
            return True
        first = self._llama.llama_memory_seq_pos_min(self._memory, sequence)
        return bool(0 <= first <= max(0, wanted - self.model.window))

    def cut(self, sequence: int, keep: int) -> bool:
        """Forget all but the first tokens of a sequence; False (and all forgotten) where that can't be."""
        if self._llama.llama_memory_seq_rm(self._memory, sequence, keep, -1):
            return True
        self._llama.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return False

    def clear(self) -> None:
        """Forget all sequences, and where in memory they were: bits of later logits depend on that."""
        self._llama.llama_memory_clear(self._memory, False)

    def copy(self, source: int, target: int, n: int) -> None:
        """Let an empty sequence share the first `n` tokens of another; check with `keeps` first."""
        self._llama.llama_memory_seq_cp(self._memory, source, target, 0, n)

    def save(self, sequence: int) -> memoryview:
        """The state of a sequence, for `restore`. Empty where llama.cpp can't give it."""
        size = self._llama.llama_state_seq_get_size(self.handle, sequence)
        state = bytearray(size)
        buffer = (ctypes.c_uint8 * size).from_buffer(state)
        n = self._llama.llama_state_seq_get_data(self.handle, buffer, size, sequence)
        return memoryview(state)[:n]

    def restore(self, sequence: int, state: memoryview, n: int) -> bool:
        """Fill an empty sequence with a state that `save` gave, of `n` tokens; False where it can't be.

        The bytes have to be exactly those: llama.cpp checks next to nothing.
        """
        buffer = (ctypes.c_uint8 * len(state)).from_buffer(state)
        read = self._llama.llama_state_seq_set_data(self.handle, buffer, len(state), sequence)
        if read == len(state) and self._llama.llama_memory_seq_pos_max(self._memory, sequence) == n - 1:
            return True
        self._llama.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return False

    def close(self) -> None:
        if self.handle:
            self._views.clear()
            self._llama.llama_batch_free(self._batch)
            self._llama.llama_free(self.handle)
            self.handle = None

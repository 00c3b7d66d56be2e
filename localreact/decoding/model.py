"""A loaded GGUF file."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from localreact.decoding import backend
from localreact.decoding.vocab import Vocab
from localreact.errors import ModelError

ALL_LAYERS = -1
_MANY = 2**31 - 1  # what every version of llama.cpp takes for all of them


class Model:
    """A loaded GGUF file: weights, vocabulary, metadata.

    `gpu_layers` are evaluated by a GPU, from the last one on (`ALL_LAYERS`: all); where this llama.cpp finds
    none, the CPU evaluates all, and the attribute is 0.

    Raises:
        ModelError: no such file, not a GGUF file, cut short, or of an architecture that
            this llama.cpp doesn't know.
    """

    def __init__(self, path: Path, gpu_layers: int = 0) -> None:
        self.path = path
        llama = backend.load()
        self._llama = llama
        check_gguf(path)
        parameters = llama.llama_model_default_params()
        self.gpu_layers = gpu_layers if llama.llama_supports_gpu_offload() else 0
        parameters.n_gpu_layers = _MANY if self.gpu_layers == ALL_LAYERS else self.gpu_layers
        backend.forget_log()
        self.handle = llama.llama_model_load_from_file(os.fsencode(path), parameters)
        if not self.handle:
            reason = backend.last_complaint() or "llama.cpp gave no reason"
            hint = "The file may be cut short (download it again) or newer than this llama-cpp-python"
            fewer = "; or it is too much for the GPU: give it fewer layers" if self.gpu_layers else ""
            raise ModelError(f"{path} can't be loaded: {reason}", f"{hint}{fewer}.")
        if not llama.llama_model_has_decoder(self.handle):
            raise ModelError(f"{path} is a model that can't complete text (it has no decoder)")
        self.vocab = Vocab(self.handle)
        self.n_ctx_train: int = llama.llama_model_n_ctx_train(self.handle)
        self.window: int = llama.llama_model_n_swa(self.handle)
        """Tokens that a sliding-window layer looks back at; 0 where there is no such layer."""
        self.recurrent = bool(
            llama.llama_model_is_recurrent(self.handle) or llama.llama_model_is_hybrid(self.handle)
        )
        """Its memory is a state that can't be cut back."""

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

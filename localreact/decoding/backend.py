"""The one place that imports llama_cpp: a clear error where it is missing, and a quiet log."""

from __future__ import annotations

import collections
import ctypes
import functools
import os
import sys
from typing import Any

from localreact.errors import MissingPartError

_recent: collections.deque[str] = collections.deque(maxlen=50)
_keep_alive: list[Any] = []  # llama.cpp calls it for as long as the process lives


def _install_hint() -> str:
    hint = "Install it with: pip install 'localreact[local]' (it compiles for a few minutes)."
    if sys.platform == "win32":
        return hint + " On Windows this needs the Visual Studio C++ build tools and CMake."
    if sys.platform == "darwin":
        return hint + " On macOS this needs the command line tools: xcode-select --install."
    return hint + " This needs a C++ compiler: apt install build-essential, or your system's like of it."


def gpu_hint() -> str:
    """How to get a llama-cpp-python that uses a GPU, on this platform."""
    again = "pip install --force-reinstall --no-cache-dir llama-cpp-python"
    if sys.platform == "darwin":
        return f"On Apple silicon the usual build does (Metal), unless it runs under Rosetta: {again}"
    return (
        "Build it for the GPU, with CMAKE_ARGS=-DGGML_CUDA=on (NVIDIA), -DGGML_HIP=on (AMD) or "
        f"-DGGML_VULKAN=on (any) in the environment: {again}"
    )


@functools.cache
def load() -> Any:
    """The llama_cpp module, its backend started and its log caught.

    Raises:
        MissingPartError: llama_cpp isn't installed, or its shared library can't be loaded.
    """
    try:
        import llama_cpp
    except ModuleNotFoundError as error:
        raise MissingPartError("running a GGUF model needs llama-cpp-python", _install_hint()) from error
    except Exception as error:  # a library built for another platform fails in many ways
        raise MissingPartError(
            f"llama-cpp-python is installed but can't be loaded: {error}",
            "Build it again for this machine: pip install --force-reinstall --no-cache-dir llama-cpp-python",
        ) from error

    echo = os.environ.get("LOCALREACT_LLAMA_LOG", "") not in ("", "0")

    def log(level: int, text: bytes, user_data: object) -> None:
        line = text.decode("utf-8", "replace")
        _recent.append(line)
        if echo:
            sys.stderr.write(line)

    callback = llama_cpp.llama_log_callback(log)
    _keep_alive.append(callback)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    return llama_cpp


def forget_log() -> None:
    """Start a new stretch of the log, so that `last_complaint` speaks of what comes next."""
    _recent.clear()


def last_complaint() -> str:
    """The most telling line that llama.cpp logged lately, or an empty string."""
    lines = [line.strip() for line in "".join(_recent).splitlines() if line.strip()]
    telling = [line for line in lines if any(word in line.lower() for word in ("error", "fail", "invalid"))]
    chosen = telling[0] if telling else ""
    return chosen.split(": ", 1)[-1] if ": " in chosen else chosen

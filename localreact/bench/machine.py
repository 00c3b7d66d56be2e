"""What figures were measured on, and how fast its memory is."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from localreact._version import __version__

_PACKAGES = ("llama-cpp-python", "llguidance", "outlines", "outlines-core", "guidance", "numpy")


def machine() -> dict[str, Any]:
    """Processor, cores, system and versions; no names of machines or users."""
    versions = {"localreact": __version__}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def bandwidth(n_threads: int, mebibytes: int = 256) -> float:
    """Bytes a second that the memory gives to so many reading threads (the best of five sums over an array
    larger than caches): what bounds the decoding of one sequence, where every weight is read once a token."""
    from concurrent.futures import ThreadPoolExecutor

    parts = [np.ones(mebibytes * (1 << 20) // 8 // n_threads) for _ in range(n_threads)]
    best = float("inf")
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(5):
            started = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = min(best, time.perf_counter() - started)
    return sum(part.nbytes for part in parts) / best


def peak_memory() -> int | None:
    """The most bytes that this process has held; None where the system doesn't tell."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

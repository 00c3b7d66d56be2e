"""How many threads to decode with, and whether others use the cores: what speed depends on most."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_SYSTEM = Path("/")  # tests put another one here
CONTENDED = 0.1
"""Share of the cores in use by others above which figures mean little: the threads of one batch wait for
each other at every layer, so the slowest core sets the pace."""


def default_threads() -> int:
    """Physical cores that this process may run on, capped by a cgroup's CPU quota; at least 1.

    Two threads on one core slow each other down in matrix work, and threads beyond a container's
    quota make every other one wait at the barrier.
    """
    allowed = _allowed_cpus()
    if allowed is None:
        return max(1, _performance_cores() or (os.cpu_count() or 2) // 2)
    cores: set[str] = set()
    for cpu in allowed:
        siblings = _read(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings or str(cpu))
    return max(1, int(min(len(cores), cpu_quota() + 0.5)))


def cpu_quota() -> float:
    """CPUs that this process's cgroup, or one above it, grants; infinite without a limit."""
    least = float("inf")
    for folder in _cgroup_folders("", "sys/fs/cgroup"):
        least = min(least, _quotient(*_read(f"{folder}/cpu.max").split()))
    for folder in _cgroup_folders("cpu", "sys/fs/cgroup/cpu"):
        quota, period = (_read(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period"))
        least = min(least, _quotient(quota, period))
    return least


def neighbours(seconds: float = 0.3) -> float | None:
    """CPUs that others kept busy meanwhile, of those that this process may run on; None where the system
    doesn't tell. What the hypervisor took counts; what this process itself used doesn't."""
    before, own = _busy_seconds(), time.process_time()
    if before is None:
        return None
    started = time.perf_counter()
    time.sleep(seconds)
    elapsed, used = time.perf_counter() - started, time.process_time() - own
    after = _busy_seconds()
    return None if after is None else max(0.0, (after - before - used) / elapsed)


def contended(seconds: float = 0.3) -> bool:
    """Whether others use so much of the machine that measuring speed is pointless; False where unknown."""
    others = neighbours(seconds)
    return others is not None and others > CONTENDED * max(1, len(_allowed_cpus() or ()))


def _allowed_cpus() -> set[int] | None:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # macOS, Windows
        return None


def _performance_cores() -> int:
    """On a Mac, the fast cores: the slow ones would hold the others up. 0 where that isn't known."""
    try:
        command = ["sysctl", "-n", "hw.perflevel0.physicalcpu"]
        return int(subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


def _cgroup_folders(controller: str, root: str) -> Iterator[str]:
    """The folder of this process's cgroup and those above it. Version 2 names no controller."""
    for line in _read("proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            parts = [part for part in path.split("/") if part and part != ".."]
            for depth in range(len(parts), -1, -1):
                yield "/".join([root, *parts[:depth]])
            return
    yield root


def _quotient(quota: str = "", period: str = "") -> float:
    try:
        granted = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return float("inf")
    return granted if granted > 0 else float("inf")


def _busy_seconds() -> float | None:
    """Seconds that the allowed CPUs have worked since boot, for anybody."""
    allowed = _allowed_cpus()
    ticks = 0
    for line in _read("proc/stat").splitlines():
        name, *numbers = line.split()
        if name[:3] == "cpu" and name[3:].isdigit() and (allowed is None or int(name[3:]) in allowed):
            # user, nice, system, idle, waiting for disks, two kinds of interrupts, taken by the hypervisor
            ticks += sum(int(numbers[at]) for at in (0, 1, 2, 5, 6, 7) if at < len(numbers))
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else None


def _read(path: str) -> str:
    try:
        return (_SYSTEM / path).read_text().strip()
    except OSError:
        return ""

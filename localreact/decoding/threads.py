"""How many threads to decode with: physical cores, within what the process may use."""

from __future__ import annotations

import os
from pathlib import Path


def default_threads() -> int:
    """Physical cores that this process may run on, capped by a cgroup's CPU quota; at least 1.

    Two threads on one core slow each other down in matrix work, and threads beyond a container's
    quota make every other one wait at the barrier.
    """
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # macOS, Windows
        return max(1, (os.cpu_count() or 2) // 2)
    cores: set[str] = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, min(len(cores), _cgroup_quota()))


def _cgroup_quota() -> int:
    """CPUs granted by cgroup v2 (`cpu.max`: quota and period in microseconds), rounded up."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError):
        return 1 << 16

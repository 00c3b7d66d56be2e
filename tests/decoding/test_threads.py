from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localreact.decoding import threads
from localreact.decoding.threads import contended, cpu_quota, default_threads, neighbours

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of its CPUs")


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system of eight CPUs on four cores, without limits."""
    monkeypatch.setattr(threads, "_SYSTEM", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for cpu in range(8):
        write(
            tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list",
            f"{cpu % 4},{cpu % 4 + 4}",
        )
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_one_thread_for_every_physical_core(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_threads() == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 5}, raising=False)
    assert default_threads() == 2


@pytest.mark.parametrize(
    ("cgroup", "limits", "wanted"),
    [
        ("0::/", {"cpu.max": "max 100000"}, 4),
        ("0::/", {"cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "20000 100000"}, 1),
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "100000 100000"}, 1),
        ("0::/../other", {"cpu.max": "200000 100000"}, 2),
        (
            "5:cpu,cpuacct:/box",
            {"cpu/box/cpu.cfs_quota_us": "200000", "cpu/box/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("5:cpu,cpuacct:/box", {"cpu/box/cpu.cfs_quota_us": "-1", "cpu/box/cpu.cfs_period_us": "100000"}, 4),
        ("", {"cpu.max": "nonsense"}, 4),
    ],
)
def test_no_more_threads_than_the_cgroup_grants(
    system: Path, cgroup: str, limits: dict[str, str], wanted: int
) -> None:
    write(system / "proc/self/cgroup", cgroup)
    for name, value in limits.items():
        write(system / "sys/fs/cgroup" / name, value)
    assert default_threads() == wanted


def test_without_any_limit_the_quota_is_infinite(system: Path) -> None:
    assert cpu_quota() == float("inf")


def test_elsewhere_half_of_the_logical_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(threads, "_performance_cores", lambda: 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert default_threads() == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert default_threads() == 1
    monkeypatch.setattr(threads, "_performance_cores", lambda: 8)
    assert default_threads() == 8


@linux
def test_a_neighbour_that_keeps_a_core_busy_is_seen() -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=-1)
    try:
        assert neighbour.stdout is not None
        neighbour.stdout.readline()
        seen = neighbours(1.0)
        assert seen is not None
        assert seen > 0.3
        assert contended(1.0)
    finally:
        neighbour.kill()
        neighbour.communicate()


def test_a_system_that_tells_nothing_counts_as_quiet(system: Path) -> None:
    assert neighbours(0.01) is None
    assert not contended(0.01)

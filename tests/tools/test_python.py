"""Code in a process of its own."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from localreact import Toolbox
from localreact.tools.execution import Call
from localreact.tools.python import CodeError, python, run_python
from localreact.types import Observation, ToolCall

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the tool refuses elsewhere")


def namespaces() -> bool:
    """Whether the system lets programs leave the network."""
    return sys.platform == "linux" and run_python("import socket; socket.if_nameindex()[-1][1]") == "lo"


def failing(code: str, seconds: float = 10) -> str:
    with pytest.raises(CodeError) as caught:
        run_python(code, seconds)
    return str(caught.value)


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("print(sum(range(10)))", "45"),
        ("2+2", "4"),
        ("x = 1\n'text ' + str(x)", "text 1"),
        ("import sys; print('a'); print('b', file=sys.stderr)", "a\nb"),
        ("x = 1", "the program printed nothing"),
        ("def f(n): return 1 if n < 2 else n * f(n - 1)\nf(10)", "3628800"),
        ("print('日本')", "日本"),
        ("[x for x in range(3) if (lambda: x)()]", "[1, 2]"),
    ],
)
def test_what_a_program_prints_comes_back(code: str, output: str) -> None:
    assert run_python(code) == output


def test_a_failure_comes_with_its_traceback_and_what_was_printed_before() -> None:
    said = failing("print('before')\n1/0")
    assert said.startswith("before\nTraceback")
    assert 'File "program.py", line 2' in said
    assert "ZeroDivisionError" in said
    assert "python_child" not in said
    assert "SyntaxError" in failing("def f(:")
    assert failing("import sys; print('x'); sys.exit(3)") == "x\n[exit code 3]"


def test_a_failure_is_an_observation() -> None:
    observation = Toolbox([python]).execute(ToolCall("", "python", {"code": "1/0"}))
    assert not observation.ok
    assert "ZeroDivisionError" in observation.content


def test_time_is_limited_and_children_are_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import time; time.sleep(0.8); open({str(mark)!r}, 'w')"
    code = f"import subprocess, sys\nprint('begun')\nsubprocess.run([sys.executable, '-c', {child!r}])"
    started = time.monotonic()
    assert failing(code, 0.4) == "begun\n[stopped after 0.4 seconds]"
    assert time.monotonic() - started < 2
    time.sleep(0.6)
    assert not mark.exists()


def test_children_left_behind_are_killed_when_the_program_ends(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = f"import time; time.sleep(0.4); open({str(mark)!r}, 'w')"
    own_session = namespaces()
    run_python(
        f"import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session={own_session})\n1"
    )
    time.sleep(0.6)
    assert not mark.exists()


def test_a_program_is_stopped_when_nobody_waits_any_longer() -> None:
    call, cancel = Call("python", {}), threading.Event()
    seen: list[Observation] = []
    box = Toolbox([python])
    arguments = {"code": "import time; time.sleep(30)"}
    waiting = threading.Thread(
        target=lambda: seen.append(box.execute(ToolCall("", "python", arguments), call, None, cancel))
    )
    waiting.start()
    cancel.set()
    waiting.join(5)
    assert call.abandoned.is_set()
    assert seen[0].unknown


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS limits no address space")
def test_memory_is_limited() -> None:
    assert "MemoryError" in failing("x = bytearray(2 << 30)")


def test_the_size_of_files_is_limited() -> None:
    assert "File too large" in failing("open('a', 'w').write('x' * (9 << 20))")


def test_cpu_time_is_limited() -> None:
    said = run_python("import resource; resource.getrlimit(resource.RLIMIT_CPU)", 7)
    assert said == "(8, 8)"


def test_a_long_output_is_cut_with_a_mark() -> None:
    said = run_python("print('x' * 500_000)")
    assert said.endswith("x … [more output was not kept]")
    assert len(said) < 101_000


def test_the_environment_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    said = run_python("import os, sys; print(dict(os.environ), sys.path)")
    assert "hunter2" not in said
    assert "/nowhere" not in said


def test_it_runs_in_an_empty_folder_that_is_removed() -> None:
    folder, entries = run_python("import os; open('a', 'w').close(); print(os.getcwd()); os.listdir()").split(
        "\n"
    )
    assert entries == "['a']"
    assert not Path(folder).exists()


def test_there_is_no_network_where_the_system_allows_that() -> None:
    if not namespaces():
        pytest.skip("no namespaces for ordinary users here")
    said = failing("import socket; socket.create_connection(('127.0.0.1', 9), 1)")
    assert "OSError" in said or "unreachable" in said

"""`python`: code that a model wrote, in a process of its own, with limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from localreact.errors import UsageError
from localreact.tools.decorator import tool
from localreact.tools.execution import PATIENCE, current_call
from localreact.types import ToolExample

SECONDS = 10  # of CPU time, and of time on the clock
MEMORY = 1 << 30  # bytes of address space
FILE_SIZE = 8 << 20  # bytes of any file that is written, the output's too
OUTPUT = 100_000  # characters of the output that are kept

_CHILD = Path(__file__).with_name("python_child.py")


class CodeError(Exception):
    """Code that failed, or was stopped. The message is what it printed, and why it ended."""


@tool(
    effects=True,
    timeout=SECONDS + 5,
    examples=[
        ToolExample(
            question="What is the sum of the squares of 1, 2 and 3?",
            thought="I should compute it with a program.",
            arguments={"code": "sum(n * n for n in (1, 2, 3))"},
            result="14",
            conclusion="The result is 14.",
            answer="14",
        )
    ],
)
def python(code: str) -> str:
    """Run a Python program and see what it prints; the value of a last expression is printed too.

    Args:
        code: the program, for example print(sum(range(10)))
    """
    return run_python(code)


def run_python(code: str, seconds: float = SECONDS) -> str:
    """What a program prints, standard output and error together.

    It runs in a fresh process and an empty folder that is removed afterwards, without the environment
    variables of this process, and is killed with its children when its time is up or nobody waits any
    longer. CPU time, memory and the size of files are limited by the operating system. Where the system
    lets an ordinary user make namespaces (most Linux systems), it has no network, and even children that
    left its session end with it.

    This keeps mistakes from doing harm; it is no jail. The program runs as the user who runs localreact:
    it reads that user's files, may change and delete them, starts as many processes as it likes until its
    time is up, each with memory of its own, and fills the disk if it wants to. Without
    namespaces (macOS, or where they are switched off) it also has the network, and a child in a session
    of its own outlives it. Code that somebody hostile may have written, or have talked a model into,
    belongs into a container or a virtual machine. Windows has none of these limits: there it refuses.

    Raises:
        CodeError: the code failed, or was stopped; the message has what it printed until then.
        UsageError: not on this system.
    """
    if os.name != "posix":
        raise UsageError("the tool python needs a POSIX system", "Run it in WSL or a container.")
    with tempfile.TemporaryDirectory(prefix="localreact-", ignore_cleanup_errors=True) as folder:
        work, output = Path(folder, "work"), Path(folder, "output")
        work.mkdir()
        program = Path(folder, "program.py")
        program.write_text(code, "utf-8", errors="replace")
        limits = [str(int(seconds) + 1), str(MEMORY), str(FILE_SIZE)]
        with output.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-I", "-B", "-X", "utf8", str(_CHILD), str(program), *limits],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=work,
                env=_environment(work),
                start_new_session=True,
            )
            stopped = _wait(process, seconds)
        return _outcome(output, process.returncode, stopped, seconds)


def _environment(folder: Path) -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {"PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8", **threads}


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the process, then kill what is left of its session; whether its time was up."""
    abandoned = None
    with suppress(UsageError):  # raised where this is called as a plain function
        abandoned = current_call().abandoned
    ends = time.monotonic() + seconds
    try:
        while True:
            try:
                process.wait(PATIENCE)
                return False
            except subprocess.TimeoutExpired:
                if time.monotonic() >= ends or (abandoned is not None and abandoned.is_set()):
                    return True
    finally:
        with suppress(ProcessLookupError, PermissionError):  # nobody is left (macOS says the second)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _outcome(output: Path, code: int, stopped: bool, seconds: float) -> str:
    with output.open("rb") as file:
        data = file.read(4 * OUTPUT)
    text = data.decode("utf-8", "replace")
    if len(text) > OUTPUT or len(data) == 4 * OUTPUT:
        text = f"{text[:OUTPUT]} … [more output was not kept]"
    text = text.strip("\n")
    if stopped:
        ended = f"[stopped after {seconds:g} seconds]"
    elif code < 0:
        ended = f"[killed by {signal.Signals(-code).name}; CPU time and memory are limited]"
    elif code:
        ended = f"[exit code {code}]"
    else:
        return text or "the program printed nothing"
    raise CodeError("\n".join(part for part in (text, ended) if part))

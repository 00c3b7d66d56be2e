"""The process that `tools/python.py` starts: limits itself, then runs the program. Never imported.

Arguments: the program's file, seconds of CPU time, bytes of memory, bytes of a file.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import io
import os
import resource
import signal
import sys
import traceback

_NEW_USER, _NEW_PID, _NEW_NET = 0x10000000, 0x20000000, 0x40000000  # CLONE_… of linux/sched.h
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def main() -> None:
    path, seconds, memory, size = sys.argv[1], *map(int, sys.argv[2:5])
    with open(path, encoding="utf-8") as file:
        source = file.read()
    _leave_the_network()
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, size),
        (resource.RLIMIT_AS, memory),
    ):
        with contextlib.suppress(OSError, ValueError):  # a stricter limit stands; macOS has no RLIMIT_AS
            resource.setrlimit(kind, (limit, limit))
    sys.argv = ["program.py"]
    _run(source)


def _leave_the_network() -> None:
    """Go into namespaces of one's own, if that is allowed: no network, and all children end with it."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_USER | _NEW_PID | _NEW_NET) != 0:
        return
    child = os.fork()  # the first process of the new namespace: when it ends, the kernel ends the others
    if child:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:  # end in the same way
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), -code)
        os._exit(code if code >= 0 else 128 - code)
    libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _run(source: str) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # in order with what goes to standard error
    try:
        tree = ast.parse(source, "program.py")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        names = {"__name__": "__main__"}
        exec(compile(tree, "program.py", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "program.py", "eval"), names)
            if value is not None:
                print(value if isinstance(value, str) else repr(value))
        sys.stdout.flush()
    except Exception as error:
        sys.stdout.flush()
        own = traceback.TracebackException.from_exception(error)
        while own.stack and own.stack[0].filename != "program.py":
            del own.stack[0]
        print("".join(own.format()).strip(), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Tools on the command line: permission, time, files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_cli import ENVIRONMENT, localreact

PAY = (
    "from localreact import tool\n"
    "@tool(effects=True, cost=2)\n"
    "def pay(amount: int) -> str:\n    'Pay an amount of money.'\n"
    "    open({mark!r}, 'a').write(f'{{amount}};')\n    return 'paid'\n"
)


def paying(tmp_path: Path, *options: str, say: str | None = None) -> tuple[str, str]:
    """What stderr says, and what was paid; `say` is typed at a terminal."""
    mark, tools = tmp_path / "mark", tmp_path / "pay.py"
    tools.write_text(PAY.format(mark=str(mark)))
    command = ["run", "Pay 3.", "-T", str(tools), "--max-steps", "2", *options]
    if say is None:
        said = localreact(*command).stderr
    else:
        pty = pytest.importorskip("pty")
        ours, theirs = pty.openpty()
        os.write(ours, say.encode())
        done = subprocess.run(
            [sys.executable, "-m", "localreact", *command],
            stdin=theirs,
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            timeout=120,
            check=False,
        )
        os.close(ours)
        os.close(theirs)
        said = done.stderr
    assert "Traceback" not in said
    return said, mark.read_text() if mark.exists() else ""


def test_approve_refuses_where_nobody_sits_at_a_terminal(tmp_path: Path) -> None:
    said, paid = paying(tmp_path, "--approve")
    assert "standard input is no terminal" in said
    assert not paid
    assert paying(tmp_path)[1]  # without --approve nobody is asked


def test_approve_asks_at_the_terminal(tmp_path: Path) -> None:
    said, paid = paying(tmp_path, "--approve", say="y\n")
    assert 'Run pay {"amount": ' in said
    assert paid
    (tmp_path / "mark").unlink()
    said, paid = paying(tmp_path, "--approve", say="\n")
    assert "it needs a person's approval (refused)" in said
    assert not paid


def test_a_cost_beyond_the_limit_is_asked_about(tmp_path: Path) -> None:
    said, paid = paying(tmp_path, "--max-cost", "1", say="y\n")
    assert "The cost comes to 2, which is beyond the limit." in said
    assert paid
    (tmp_path / "mark").unlink()
    assert not paying(tmp_path, "--max-cost", "1")[1]


def test_a_hung_tool_ends_at_the_timeout(tmp_path: Path) -> None:
    tools = tmp_path / "slow.py"
    tools.write_text(
        "import time\nfrom localreact import tool\n"
        "@tool\ndef wait(seconds: int) -> str:\n    'Wait.'\n    time.sleep(60)\n    return 'done'\n"
    )
    done = localreact("run", "Wait.", "-T", str(tools), "--tool-timeout", "0.2", "--max-steps", "2")
    assert "Observation: no result within 0.2 seconds" in done.stderr
    assert "tool 'wait': its description ('Wait.') is too short to choose by" in done.stderr


def test_files_under_a_root(tmp_path: Path) -> None:
    (tmp_path / "quarl.txt").write_text("Quarl is a green fruit.")
    done = localreact(
        *("run", "Which files are there?", "-T", "list", "--root", str(tmp_path)),
        *("--json", "-q", "--max-steps", "2"),
    )
    step = json.loads(done.stdout)["steps"][0]
    assert step["tool"] == "list"
    assert done.stderr == ""
    assert localreact("run", "x", "-T", "list", "--root", "nowhere").returncode == 2

"""Tools on the command line: permission, time, files."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from localreact.commands import asking
from localreact.errors import UsageError
from localreact.tools import Call
from tests.test_cli import localreact

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
            env={**os.environ, "NO_COLOR": "1"},
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


def test_at_a_terminal_the_person_is_asked(tmp_path: Path) -> None:
    said, paid = paying(tmp_path, "--approve", "--max-cost", "1", say="y\ny\n")
    assert "The cost comes to 2, which is beyond the limit." in said
    assert said.count('Run pay {"amount": ') == 2
    assert paid


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "allowed"),
    [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False), ("yo\n", False)],
)
def test_only_a_yes_is_a_yes(
    typed: str, allowed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    call = Call("pay", {"to": "\x1b[2Jévil"})
    assert asking.approval(call) is allowed
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == '\nRun pay {"to": "\\u001b[2Jévil"}? [y/N] '


@pytest.mark.parametrize("stdin", [None, io.StringIO("y\n")])
def test_without_a_terminal_nobody_says_yes(
    stdin: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(UsageError, match="no terminal"):
        asking.over_budget(Call("pay", {}), 3)


def test_a_hung_tool_ends_at_the_timeout(tmp_path: Path) -> None:
    tools = tmp_path / "slow.py"
    tools.write_text(
        "import time\nfrom localreact import tool\n"
        "@tool\ndef wait(seconds: int) -> str:\n    'Wait.'\n    time.sleep(60)\n    return 'done'\n"
    )
    done = localreact("run", "Wait.", "-T", str(tools), "--tool-timeout", "0.2", "--max-steps", "2")
    assert "Observation: no result within 0.2 seconds" in done.stderr
    assert "tool 'wait': its description ('Wait.') is too short to choose by" in done.stderr


@pytest.mark.slow
def test_files_under_a_root(tmp_path: Path) -> None:
    (tmp_path / "quarl.txt").write_text("Quarl is a green fruit.")
    done = localreact(
        *("run", "Which files are there?", "-T", "list", "--root", str(tmp_path)),
        *("--json", "-q", "--max-steps", "2", "--max-tokens", "300"),
    )
    step = json.loads(done.stdout)["steps"][0]
    assert step["tool"] == "list"
    assert done.stderr == ""

"""Runs, as `localreact serve -T …` serves them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
from typer.testing import CliRunner

from localreact.cli import app
from localreact.errors import UsageError
from tests.fakes import wait_until


def test_the_commands_tools_make_runs(tiny_gguf: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "localreact", "serve", "-m", str(tiny_gguf), "-t", "1", "--port", "0"]
    process = subprocess.Popen(
        [*command, "-q", "-T", "calculator", "-T", "search"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        address = next(found[1] for line in lines if (found := re.search(r"(http://\S+)", line)))
        with httpx2.Client(base_url=address, timeout=60) as client:
            wait_until(lambda: client.get("/health").status_code == 200, 60)
            choices = client.get("/v1/runs/choices").json()
            assert [each["name"] for each in choices["tools"]] == ["calculator", "search"]
            run = client.post("/v1/runs", json={"question": "What is 2+2?", "max_tokens": 150}).json()
            assert run["steps"]
            assert (tmp_path / "localreact" / "traces" / f"{run['id']}.jsonl").is_file()
            assert client.get("/").text.startswith("<!doctype html>")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, -signal.SIGINT)
    finally:
        process.kill()
        process.communicate()


def test_a_tool_that_is_none_is_said_before_anything_is_loaded(tiny_gguf: Path) -> None:
    result = CliRunner().invoke(app, ["serve", "-m", str(tiny_gguf), "-T", "abacus"])
    assert isinstance(result.exception, UsageError)
    assert "abacus" in result.exception.message

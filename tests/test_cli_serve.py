"""`localreact serve` as a process."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.fakes import wait_until

COMMAND = [sys.executable, "-m", "localreact", "serve"]


def refused(*options: str) -> str:
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert not done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


@contextmanager
def started(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and where it listens."""
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def test_it_answers_at_once_serves_when_loaded_and_stops_at_ctrl_c(tiny_gguf: Path) -> None:
    with started("-m", str(tiny_gguf), "-t", "1", "-q") as (process, url):
        assert httpx2.get(f"{url}/health").status_code in (200, 503)
        wait_until(lambda: httpx2.get(f"{url}/health").status_code == 200, 30)
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
        answer = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=30)
        assert answer.json()["choices"][0]["message"]["role"] == "assistant"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert not out
    assert "is loaded" in err
    assert "Traceback" not in err


def test_a_model_that_cannot_be_loaded_ends_it(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"no model")
    assert "broken.gguf" in refused("--port", "0", "-m", str(tmp_path / "broken.gguf"))
    assert "there is no model" in refused("-m", "no-such-model")


def test_it_listens_to_others_only_with_a_key() -> None:
    assert "needs a key" in refused("--host", "0.0.0.0")


def test_a_port_in_use_is_said_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "--port" in refused("--port", str(taken.getsockname()[1]))


def test_without_its_packages_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; sys.argv = ['localreact', 'serve'];"
        "from localreact.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "localreact[serve]" in done.stderr


@pytest.mark.parametrize("option", [("--port", "70000"), ("--parallel", "0"), ("--queue", "-1")])
def test_options_have_bounds(option: tuple[str, str]) -> None:
    assert option[0] in refused(*option)

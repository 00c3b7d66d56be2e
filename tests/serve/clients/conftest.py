"""A server process of its own over the real small model, as clients find it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx2
import pytest

from tests.fakes import wait_until

MODEL = "smollm2"


@pytest.fixture(scope="package")
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "localreact", "serve", "-m", MODEL, "--port", "0", "--max-tokens", "300"]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        first = process.stderr.readline()
        found = re.search(r"http://\S+", first)
        assert found, first
        # What it says afterwards has to be read, or it would wait for somebody to do so.
        reader = threading.Thread(target=process.stderr.read, daemon=True)
        reader.start()
        with httpx2.Client(base_url=found[0]) as client:
            wait_until(lambda: client.get("/health").status_code == 200, 60)
        yield found[0]
    finally:
        process.terminate()
        process.wait(20)
        reader.join(5)
        process.stderr.close()
    assert process.returncode in (0, -15)

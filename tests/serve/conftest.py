from __future__ import annotations

from collections.abc import Iterator

import pytest

from localreact.endpoints.llama import LlamaEndpoint
from tests.serve.gate import Gate
from tests.serve.server import Server, serving


@pytest.fixture(scope="package")
def served(tiny: LlamaEndpoint) -> Iterator[Server]:
    """The tiny model behind a real server."""
    with serving(tiny, queue=200, max_tokens=400) as server:
        yield server


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()

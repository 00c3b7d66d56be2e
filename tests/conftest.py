from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.resolve import open_endpoint
from localreact.tools.decorator import Tool, tool
from tests.tiny import write_tiny_gguf

CHATML = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(autouse=True)
def _own_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the user's folders."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("LOCALREACT_LLAMA_LOG", raising=False)


@pytest.fixture(scope="session", autouse=True)
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nor keeps prefixes there; all tests share what they keep."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("LOCALREACT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", chat_template=CHATML)


@pytest.fixture(scope="session")
def tiny(tiny_gguf: Path) -> Iterator[LlamaEndpoint]:
    endpoint = LlamaEndpoint(tiny_gguf, n_threads=1)
    yield endpoint
    endpoint.close()


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEndpoint]:
    path = tmp_path_factory.mktemp("tiny") / "sentencepiece.gguf"
    endpoint = LlamaEndpoint(
        write_tiny_gguf(path, chat_template=CHATML, tokenizer="sentencepiece"), n_threads=1
    )
    yield endpoint
    endpoint.close()


@pytest.fixture(scope="session")
def smollm2() -> Iterator[LlamaEndpoint]:
    endpoint = open_endpoint("smollm2")
    assert isinstance(endpoint, LlamaEndpoint)
    yield endpoint
    endpoint.close()


@pytest.fixture
def stock() -> Tool:
    @tool
    def stock(sku: str) -> int:
        """How many of an article are left."""
        return 3

    return stock

from __future__ import annotations

from pathlib import Path

import pytest

from localreact.endpoints.address import Address, looks_like_address, parse_addresses
from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.resolve import default_model, open_endpoint
from localreact.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llama-server:http://host:8080", Address("llama-server", "http://host:8080")),
        ("llama-server:http://host:8080/", Address("llama-server", "http://host:8080")),
        ("openai:http://host:8000/v1#org/model", Address("openai", "http://host:8000/v1", "org/model")),
        ("openai:https://host", Address("openai", "https://host/v1")),
        ("ollama:http://host:11434#qwen3:4b", Address("ollama", "http://host:11434", "qwen3:4b")),
        ("tgi:http://[::1]:8080/behind/proxy", Address("tgi", "http://[::1]:8080/behind/proxy")),
    ],
)
def test_forms(text: str, expected: Address) -> None:
    assert looks_like_address(text)
    assert parse_addresses(text) == [expected]


def test_replicas_share_kind_and_model() -> None:
    assert parse_addresses("openai:http://a/v1, openai:http://b/v1#m") == [
        Address("openai", "http://a/v1", "m"),
        Address("openai", "http://b/v1", "m"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "http://host:8080",
        "vllm:http://host:8000",
        "openai:",
        "openai://host",
        "openai:host:8000",
        "openai:ftp://host",
        "llama-server:http://",
        "llama-server:http://host:99999",
        "llama-server:http://host:0",
        "llama-server:http://[::1",
        "openai:http://a/v1,",
    ],
)
def test_a_broken_address_is_refused_with_the_forms(text: str) -> None:
    assert looks_like_address(text)
    with pytest.raises(UsageError, match=r"ollama:http://host:11434#MODEL"):
        open_endpoint(text)


@pytest.mark.parametrize("text", ["openai:http://ada:secret@host/v1", "openai:http://host/v1?key=secret"])
def test_credentials_in_an_address_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError, match="LOCALREACT_API_KEY") as caught:
        parse_addresses(text)
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError) as caught:
        parse_addresses("http://ada:secret@host")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["smollm2", "model.gguf", "/models/a.gguf", "./a:b.gguf", r"C:\models\a.gguf"]
)
def test_names_and_paths_are_no_addresses(text: str) -> None:
    assert not looks_like_address(text)


def test_the_default_model_may_be_set_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALREACT_MODEL", raising=False)
    assert default_model() == "smollm2"
    monkeypatch.setenv("LOCALREACT_MODEL", "http://nothing")
    with pytest.raises(UsageError):
        open_endpoint()


def test_engines_in_process_are_not_for_servers() -> None:
    with pytest.raises(UsageError, match="for models in process"):
        open_endpoint("llama-server:http://127.0.0.1:9", engine="gbnf")


def test_a_chat_template_of_ones_own(tiny_gguf: Path, tmp_path: Path) -> None:
    template = tmp_path / "other.jinja"
    template.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>")
    endpoint = open_endpoint(tiny_gguf, chat_template=template)
    assert isinstance(endpoint, LlamaEndpoint)
    assert endpoint.chat.begin == "<system>"
    endpoint.close()
    with pytest.raises(UsageError, match=r"the chat template .*nowhere can't be read"):
        open_endpoint(tiny_gguf, chat_template=tmp_path / "nowhere")

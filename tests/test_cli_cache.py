from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from localreact.cli import app
from localreact.endpoints.llama import LlamaEndpoint
from localreact.errors import UsageError
from localreact.types import Limits, Prompt, Sampling, Segment, TurnGrammar

OPENING = (
    Segment("<|im_start|>", trusted=True),
    Segment("Say x. " * 20),
    Segment("<|im_end|>", trusted=True),
)


def localreact(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALREACT_CACHE", str(tmp_path))
    return tmp_path / "prefixes"


def test_what_is_kept_is_listed_and_cleared(folder: Path, tiny_gguf: Path) -> None:
    assert localreact("cache", "path").strip() == str(folder)
    assert localreact("cache", "list").strip() == "0 kept, 0.0 MiB"
    endpoint = LlamaEndpoint(tiny_gguf, n_threads=1)
    prompt = Prompt((*OPENING, Segment("now")), len(OPENING))
    for _ in endpoint.complete(prompt, TurnGrammar("lark", "start: /[a-z]{3}/"), Limits(5), Sampling()):
        pass
    endpoint.close()  # waits for what is being written
    document = json.loads(localreact("cache", "list", "--json"))
    assert document["folder"] == str(folder)
    (entry,) = document["entries"]
    assert entry["model"] == "tiny.gguf"
    assert entry["tokens"] > 64
    assert (folder / entry["file"]).stat().st_size == entry["bytes"]
    assert f"{entry['tokens']} tokens" in localreact("cache", "list")
    assert localreact("cache", "clear").strip() == "1 removed"
    assert list(folder.iterdir()) == []
    assert localreact("cache", "clear").strip() == "0 removed"


def test_an_empty_variable_keeps_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALREACT_CACHE", "")
    with pytest.raises(UsageError, match="nothing is kept"):
        CliRunner().invoke(app, ["cache", "list"], catch_exceptions=False)

from __future__ import annotations

import json

import pytest

from tests.fakes import GRAMMARS, Fake, serving
from tests.test_cli import localreact


@pytest.mark.parametrize("kind", ["llama-server", "openai", "ollama"])
def test_what_holds_is_printed(kind: str) -> None:
    with serving(Fake(kind, enforces=GRAMMARS[kind])) as fake:
        done = localreact("probe", fake.address, "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["level"].startswith("enforced by the server's")
    found = {each["what"]: each["holds"] for each in document["findings"] if each["holds"] is not False}
    assert found.keys() >= {"json_schema", "streaming", "usage"}
    assert document["endpoint"].endswith("#tiny") or document["endpoint"].endswith("#tiny.gguf")


def test_a_server_that_ignores_everything_is_checked_only() -> None:
    with serving(Fake("openai", knows_stops=False, counts=False)) as fake:
        done = localreact("probe", fake.address)
    assert done.returncode == 0
    assert "turns are: checked only" in done.stdout
    assert "structured_outputs.json)" in done.stdout
    assert "ignored: it said 'Hello Ada" in done.stdout
    assert "stop strings (stop)" in done.stdout
    assert "ignored; texts are cut here" in done.stdout
    assert "no token counts" in done.stdout


def test_wrong_use_and_an_absent_server_are_told() -> None:
    done = localreact("probe", "smollm2")
    assert done.returncode == 2
    assert "needs no probing" in done.stderr
    done = localreact("probe", "tgi:http://127.0.0.1:9")
    assert done.returncode == 2
    assert "can't be reached" in done.stderr


def test_a_run_over_a_server_says_what_held_its_turns() -> None:
    call = '{"thought": "I should use it now.", "tool": "calculator", "arguments": {"expression": "1+1"}}'
    finish = '{"thought": "The result is there.", "type": "finish", "answer": "2"}'
    with serving(Fake("ollama", [call, finish], enforces=("format",))) as fake:
        done = localreact("run", "What is 1+1?", env={"LOCALREACT_MODEL": fake.address})
    assert (done.returncode, done.stdout) == (0, "2\n")
    assert "enforced by the server's JSON schema" in done.stderr
    assert "plain transcript" in done.stderr


def test_a_list_of_replicas_on_the_command_line() -> None:
    call = '{"thought": "I should use it now.", "tool": "calculator", "arguments": {"expression": "1+1"}}'
    finish = '{"thought": "The result is there.", "type": "finish", "answer": "2"}'
    enforces = GRAMMARS["llama-server"]
    with (
        serving(Fake("llama-server", [call, finish], enforces=enforces)) as one,
        serving(Fake("llama-server", [call, finish], enforces=enforces)) as two,
    ):
        both = f"{one.address},{two.url}"
        done = localreact("run", "What is 1+1?", "-m", both)
        assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
        assert sorted(len(fake.completions) for fake in (one, two)) == [
            0,
            2,
        ]  # a run stays where its prefix is
        done = localreact("probe", both, "--json")
        assert [each["level"] for each in json.loads(done.stdout)["replicas"]] == [
            "enforced by the server's grammar"
        ] * 2


def test_a_regex_is_found_and_said() -> None:
    with serving(Fake("sglang", enforces=("regex",))) as fake:
        done = localreact("probe", fake.address)
    assert "turns are: enforced by the server's regex" in done.stdout

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localreact.decoding import backend
from localreact.trace.jsonl import read_trace
from tests.conftest import CHATML
from tests.tiny import write_tiny_gguf


def localreact(
    *arguments: str, stdin: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "localreact", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        env={**os.environ, "NO_COLOR": "1", **(env or {})},  # as the fixtures have it by now
        timeout=120,
        check=False,
    )


def test_the_answer_alone_goes_to_stdout(tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    done = localreact("run", "What is 3*45+2*12?", "--trace", str(trace))
    assert (done.returncode, done.stdout) == (0, "159\n")
    assert "Thought: " in done.stderr
    assert "Action: calculator" in done.stderr
    assert "Observation: 159" in done.stderr
    assert "finished · 2 steps · " in done.stderr
    assert "tokens/s" in done.stderr
    assert "\x1b" not in done.stderr
    assert read_trace(trace)[-1]["status"] == "finished"


def test_json_prints_one_document_and_a_question_may_come_from_stdin() -> None:
    done = localreact("run", "-", "--json", "--quiet", stdin="What is 3*45+2*12?\n")
    assert done.returncode == 0
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert (document["status"], document["answer"]) == ("finished", "159")
    assert document["steps"][0]["tool"] == "calculator"
    assert document["steps"][0]["observation"] == "159"
    assert document["usage"]["forced"] > 0
    assert read_trace(Path(document["trace"]))[-1]["event"] == "RunEnded"


def test_layers_for_a_gpu_are_told_and_none_is_needed(tmp_path: Path) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf", chat_template=CHATML))
    for layers in ("all", "-1", "2"):
        done = localreact(
            "run", "Hello?", "-m", model, "-ngl", layers, "-T", "calculator", "--max-steps", "1"
        )
        assert done.returncode in (0, 1), done.stderr
        assert ("finds no GPU" in done.stderr) != backend.load().llama_supports_gpu_offload()
    done = localreact("run", "Hello?", "-m", model, "--gpu-layers", "many")
    assert done.returncode == 2
    assert "'many' is neither a" in done.stderr


def test_reasoning_is_shown_and_counted_apart_and_can_be_switched_off(tmp_path: Path) -> None:
    template = CHATML + "{# <think></think> #}"
    model = str(write_tiny_gguf(tmp_path / "thinking.gguf", chat_template=template))
    for tokens, shown in (("30", True), ("0", False)):
        command = ("run", "Think.", "-m", model, "--reasoning-tokens", tokens, "--max-steps", "1")
        done = localreact(*command)
        assert ("Reasoning: " in done.stderr, " of reasoning · " in done.stderr) == (shown, shown)
        document = json.loads(localreact(*command, "--json").stdout)
        assert (document["usage"]["reasoning"] > 30) == shown
        assert ("reasoning" in document["steps"][0]) == shown


def test_documents_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "quarl.md").write_text("# Quarl\n\nQuarl is a green fruit that grows in Tarn.")
    done = localreact("run", "What is Quarl?", "--docs", str(tmp_path), "-T", "search", "--json", "--quiet")
    assert done.returncode == 0
    assert "green fruit" in json.loads(done.stdout)["steps"][0]["observation"]
    assert done.stderr == ""


def test_a_run_that_ends_otherwise_exits_with_1() -> None:
    done = localreact("run", "What is 3*45+2*12?", "--max-steps", "1", "--quiet")
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "x", "-m", "nowhere.gguf"], "there is no model 'nowhere.gguf'"),
        (["run", "x", "-T", "hammer"], "there is no tool 'hammer'"),
        (["run", "x", "--docs", "nowhere"], "there is no folder nowhere"),
        (["run", "x", "--trace", "/proc/nowhere/run.jsonl"], "can't be written"),
        (["run", "x", "--trace", "/"], "is a folder"),
        (["run", "x", "--max-steps", "0"], "max_steps must be at least 1"),
        (["run", "x", "--temp", "-1"], "temperature must be 0 (greedy)"),
        (["run", "x", "--max-turn-tokens", "3"], "max_turn_tokens must be at least"),
        (["run", "x", "--check", "nice"], "there is no check 'nice'"),
        (["run", "x", "--check", "matches:("], "can't be checked with"),
        (["run", "x", "--colour"], "No such option"),
        (["run", "x", "--max-steps", "many"], "--max-steps"),
        (["run", ""], "the question is empty"),
        (["run"], "the question is empty"),
        (["jump"], "No such command"),
    ],
)
def test_wrong_use_exits_with_2_and_a_message(arguments: list[str], message: str) -> None:
    done = localreact(*arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_broken_model_file_exits_with_2(tmp_path: Path, tiny_gguf: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("Not a model.")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_gguf.read_bytes()[:5000])
    for path, message in ((text, "is not a GGUF file"), (cut, "can't be loaded")):
        done = localreact("run", "x", "-m", str(path))
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_a_context_too_small_for_the_system_prompt_is_said(tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    done = localreact("run", "What is 3*45+2*12?", "--ctx", "256", "--trace", str(trace))
    assert (done.returncode, done.stdout) == (1, "")
    assert "context_overflow" in done.stderr
    assert "the context holds 256" in done.stderr
    assert read_trace(trace)[-1]["status"] == "context_overflow"


def test_a_model_that_knows_nothing_ends_well(tiny_gguf: Path, tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    done = localreact(
        "run", "x", "-m", str(tiny_gguf), "--temp", "1", "--max-tokens", "300", "--trace", str(trace)
    )
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr
    assert read_trace(trace)[-1]["event"] == "RunEnded"


def test_ctrl_c_in_mid_run_closes_the_trace(tmp_path: Path) -> None:
    tools = tmp_path / "slow.py"
    tools.write_text(
        "import time\nfrom localreact import tool\n"
        "@tool\ndef wait(seconds: int) -> str:\n    'Wait.'\n    time.sleep(60)\n    return 'done'\n"
    )
    trace = tmp_path / "run.jsonl"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "localreact",
            "run",
            "Wait a second.",
            "-T",
            str(tools),
            "--trace",
            str(trace),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and not (trace.exists() and "ToolStarted" in trace.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)  # the first one asks for an answer, the second interrupts the tool
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (1, "")
    assert "cancelled" in errors
    assert "Traceback" not in errors
    assert read_trace(trace)[-1]["status"] == "cancelled"


def test_one_ctrl_c_closes_the_tools_and_asks_for_the_answer(tmp_path: Path) -> None:
    tools = tmp_path / "slow.py"
    tools.write_text(
        "import time\nfrom pathlib import Path\nfrom localreact import tool\n"
        "@tool\ndef wait(word: str) -> str:\n    'Wait for a word.'\n"
        f"    asked = Path({str(tmp_path / 'asked')!r})\n"
        "    while not asked.exists():\n        time.sleep(0.05)\n    return 'done'\n"
    )
    trace = tmp_path / "run.jsonl"
    command = [
        sys.executable,
        "-m",
        "localreact",
        "run",
        "Wait for it.",
        "-T",
        str(tools),
        "--trace",
        str(trace),
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert process.stderr is not None
    errors = ""
    until = time.monotonic() + 60
    while time.monotonic() < until and not (trace.exists() and "ToolStarted" in trace.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    while "Ctrl-C again" not in errors:
        errors += process.stderr.readline()
    (tmp_path / "asked").touch()
    process.communicate(timeout=60)
    records = read_trace(trace)
    assert process.returncode == 1
    assert [record["closing"] for record in records if record["event"] == "StepStarted"] == [
        "",
        "interrupted",
    ]
    assert (records[-1]["status"], records[-1]["reason"]) == ("partial", "interrupted")


def test_what_a_tool_prints_is_not_the_answer(tmp_path: Path) -> None:
    tools = tmp_path / "loud.py"
    tools.write_text(
        "from localreact import tool\n"
        "@tool\ndef count(word: str) -> int:\n    'Count letters.'\n    print('LOUD')\n    return len(word)\n"
    )
    done = localreact(
        "run", "How many letters has tree?", "-T", str(tools), "--json", "-q", "--max-steps", "3"
    )
    assert json.loads(done.stdout)["steps"][0]["tool"] == "count"
    assert "LOUD" in done.stderr


def test_a_reader_that_goes_away_does_not_hang_the_command(tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    command = [sys.executable, "-m", "localreact", "run", "What is 3*45+2*12?", "--trace", str(trace)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"}
    )
    assert process.stdout is not None
    process.stdout.close()
    process.wait(timeout=60)
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.returncode != 0
    assert read_trace(trace)[-1]["event"] == "RunEnded"


@pytest.mark.slow
def test_an_answer_cites_what_a_tool_said() -> None:
    question = "At what temperature does zeta-9 melt?"
    done = localreact("run", question, "--cite", "-T", "search")
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    said, cited = (
        done.stderr.partition(label)[2].split("\n")[0] for label in ("Observation: ", "Evidence: ")
    )
    quote = cited.removesuffix(" [step 1]")
    assert len(quote) >= 12
    assert quote in said
    document = json.loads(localreact("run", question, "--cite", "-T", "search", "--json", "-q").stdout)
    assert document["evidence"] == [{"step": 1, "quote": quote}]
    refused = localreact("run", question, "--cite", "--protocol", "bracket")
    assert refused.returncode == 2
    assert "has no place for citations" in refused.stderr


def test_a_plan_is_shown_as_it_is_made(tiny_gguf: Path, tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    options = [
        "-m",
        str(tiny_gguf),
        "--strategy",
        "plan",
        "--max-tokens",
        "900",
        "--temp",
        "1",
        "--seed",
        "4",
    ]
    done = localreact("run", "What is 2+2?", *options, "--trace", str(trace), "--json", "-T", "calculator")
    document = json.loads(done.stdout)
    assert read_trace(trace)[0]["settings"]["strategy"] == "plan"
    plans = [record for record in read_trace(trace) if record["event"] == "Planned"]
    made = [each for each in document["steps"] if each.get("tool") == "plan" and "observation" not in each]
    assert [each["arguments"]["steps"] for each in made] == [each["steps"] for each in plans]
    assert ("Plan: " in done.stderr) == bool(plans)
    assert "Plan: " in localreact("trace", "show", str(trace)).stderr or not plans
    assert localreact("run", "x", "-m", str(tiny_gguf), "--strategy", "tree").returncode == 2


def test_an_answer_that_a_check_turned_down_is_not_on_stdout_twice() -> None:
    done = localreact("run", "What is 3*45+2*12?", "--check", "matches:[a-z]+", "--check", "grounded")
    assert (done.returncode, done.stdout) == (1, "159\n")
    assert "the answer has to match [a-z]+" in done.stderr
    assert "partial" in done.stderr


def test_help_and_version() -> None:
    assert localreact("--version").stdout.startswith("localreact 0.")
    text = localreact("run", "--help").stdout
    for option in (
        "--model",
        "--docs",
        "--tool",
        "--max-steps",
        "--deadline",
        "--cite",
        "--json",
        "--trace",
        "--quiet",
    ):
        assert option in text
    assert localreact().returncode == 2


def test_escape_sequences_in_tool_output_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "evil.md").write_text("# Quarl\n\nQuarl is \x1b[31mred\x1b]0;title\x07 and \u202egnol.")
    done = localreact("run", "What is Quarl?", "--docs", str(tmp_path), "-T", "search")
    assert "\x1b" not in done.stderr
    assert "\u202e" not in done.stderr


def test_text_is_shown_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "quarl.md").write_text("# Quarl\n\nQuarl is [bold]1:100:2[/bold] :smile: a fruit.")
    done = localreact("run", "What is Quarl?", "--docs", str(tmp_path), "-T", "search")
    assert "[bold]1:100:2[/bold] :smile:" in done.stderr

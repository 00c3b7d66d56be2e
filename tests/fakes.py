"""Servers that speak the protocols of real ones, written from their documentation, over a scripted model.

A `Fake` answers completions with its `replies` in order, or, to a request that asks for a grammar which
it enforces, with whatever the grammar admits where the prompt isn't scripted (a probe). `faults` are
played before anything else, one a request for a completion.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from localreact.endpoints.probe import QUESTION

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
Body = dict[str, Any]


@dataclass
class Fault:
    """An answer that isn't one. `cut` drops the stream after so many pieces; `hang` answers nothing."""

    status: int = 200
    body: str = ""
    type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    hang: bool = False
    disconnect: bool = False


@dataclass
class Fake:
    """`enforces` names the request fields (dotted) whose grammars hold; others are ignored, or, if they
    are in `refuses`, answered with 400."""

    kind: str
    replies: Iterable[str] = ()
    enforces: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    cannot_compile: tuple[str, ...] = ()
    """Fields in which it enforces simple grammars, and answers those of turns with 400."""

    faults: list[Fault] = field(default_factory=list)
    key: str | None = None
    model: str = "tiny"
    knows_stops: bool = True
    counts: bool = True
    pause: float = 0.0
    """Seconds between the events of a stream."""

    tokenizes: bool = True
    """Whether a server of a kind that may have a tokenizer API has it, and takes prompts as ids."""

    cut_by_tokens: int = 0
    """So many of the first replies end because the tokens ran out."""

    chat: Iterable[Body] = ()
    """Assistant messages, for `/v1/chat/completions`."""

    requests: list[tuple[str, Body]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self._replies = iter(self.replies)
        self._messages = iter(self.chat)
        self.released = threading.Event()
        self.hung_up = False
        self.gone = False
        self.ended = "stop"

    @property
    def address(self) -> str:
        form = "openai" if self.kind == "lmstudio" else self.kind
        path = "/v1" if form == "openai" else ""
        model = f"#{self.model}" if form in ("openai", "ollama") else ""
        return f"{form}:{self.url}{path}{model}"

    @property
    def completions(self) -> list[Body]:
        """Bodies of the completions asked for after probing and checking."""
        found = []
        for path, body in self.requests:
            if path in PATHS and not self._is_probe(body):
                found.append(body)
        return found

    @property
    def chats(self) -> list[Body]:
        return [body for path, body in self.requests if path == CHAT_PATH]

    def prompt(self, body: Body) -> str:
        prompt = body.get("prompt", body.get("text", body.get("inputs", body.get("input_ids"))))
        return "".join(map(_text_of, prompt)) if isinstance(prompt, list) else str(prompt)

    def _asks(self, body: Body) -> bool:
        return QUESTION in self.prompt(body)

    def _is_probe(self, body: Body) -> bool:
        return self._asks(body) or _tokens_asked(body) == 1

    def says(self, body: Body) -> str:
        """What the model writes, as far as grammars and stop strings let it."""
        fields = dict(flat(body))
        for name in self.enforces:
            if name in fields and self._is_probe(body):
                return _only_text(fields[name])
        if self._is_probe(body):
            text = "Hello Ada, how are you today?"
        else:
            text = next(self._replies)
            self.ended = "length" if self.cut_by_tokens else "stop"
            self.cut_by_tokens = max(0, self.cut_by_tokens - 1)
        stops = fields.get("stop") or ()
        if self.knows_stops:
            for stop in stops:
                text = text.partition(stop)[0]
        return text


def flat(body: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a request by their names in `Fake.enforces`."""
    for name, value in body.items():
        yield prefix + name, value
        if isinstance(value, Mapping) and value.keys() == {"type", "value"}:  # TGI's grammar
            yield f"{name}.{value['type']}", value
        if isinstance(value, Mapping) and name in (
            "structured_outputs",
            "sampling_params",
            "parameters",
            "options",
        ):
            yield from flat(value, "" if name in ("sampling_params", "parameters", "options") else f"{name}.")


def _tokens_asked(body: Body) -> int:
    fields = dict(flat(body))
    names = ("n_predict", "max_tokens", "max_new_tokens", "num_predict")
    return next((int(fields[name]) for name in names if name in fields), -1)


def _only_text(grammar: Any) -> str:
    """What a probe's grammar admits."""
    if isinstance(grammar, Mapping) and "value" in grammar:
        grammar = grammar["value"]
    if isinstance(grammar, Mapping) and "json_schema" in grammar:
        grammar = grammar["json_schema"]["schema"]
    text = grammar if isinstance(grammar, str) else json.dumps(grammar)
    if text.lstrip().startswith("{"):
        schema = json.loads(text)
        code = (
            next(iter(schema["properties"].values()))["anyOf"][0]["const"] if "properties" in schema else ""
        )
        return json.dumps({"code": code})
    return "code=" + "".join(re.findall(r"\[(\d)\]", text))


def _text_of(token: int) -> str:
    return SPECIAL_TEXTS[token] if token in SPECIAL_TEXTS else bytes([token]).decode("latin-1")


SPECIALS = {"<|im_start|>": 300, "<|im_end|>": 301, "<think>": 302, "[INST]": 303}
BOS = 304
SPECIAL_TEXTS = {token: text for text, token in SPECIALS.items()} | {BOS: ""}


def tokenize(text: str, parse_special: bool) -> list[int]:
    """Bytes, but for control tokens (where asked for) and `<think>`, a user-defined token (always)."""
    ids: list[int] = []
    known = SPECIALS if parse_special else {"<think>": 302}
    for part in re.split("(" + "|".join(map(re.escape, known)) + ")", text):
        ids += [known[part]] if part in known else list(part.encode())
    return ids


def _hub_tokenize(fake: Fake, path: str, body: Body) -> Answer:
    """As vLLM's and SGLang's tokenizer API: special tokens are always recognised."""
    if path != "/tokenize" or not fake.tokenizes:
        return _nothing(fake, path, body)
    ids = [BOS] * body["add_special_tokens"] + tokenize(body["prompt"], True)
    return 200, {"count": len(ids), "max_model_len": 4096, "tokens": ids, "token_strs": None}


CHAT_PATH = "/v1/chat/completions"
PATHS = ("/completion", "/v1/completions", "/generate", "/generate_stream", "/api/generate")
Answer = tuple[int, Any]


class _Handler(BaseHTTPRequestHandler):
    fake: Fake
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Be quiet."""

    def do_GET(self) -> None:
        if self._has_gone():
            return
        self._headers_seen()
        if self._authorized():
            status, answer = GETS[self.fake.kind](self.fake, self.path)
            self._json(status, answer)

    def do_POST(self) -> None:
        if self._has_gone():
            return
        self._headers_seen()
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.fake.requests.append((self.path, body))
        if not self._authorized():
            return
        if self.path == CHAT_PATH:
            self._chat(body)
            return
        if self.path not in PATHS:
            status, answer = POSTS[self.fake.kind](self.fake, self.path, body)
            self._json(status, answer)
            return
        fault = self.fake.faults.pop(0) if self.fake.faults and not self.fake._is_probe(body) else None
        if fault and self._play(fault):
            return
        fields = dict(flat(body))
        for name in self.fake.refuses:
            if name in fields:
                self._json(400, ERRORS[self.fake.kind](400, f"unknown field: {name}"))
                return
        for name in self.fake.cannot_compile:
            if name in fields and not self.fake._asks(body):
                self._json(400, ERRORS[self.fake.kind](400, f"can't compile {name}"))
                return
        takes_ids = self.fake.kind == "llama-server" or self.fake.tokenizes
        if isinstance(body.get("prompt"), list) and not takes_ids:
            self._json(400, ERRORS[self.fake.kind](400, "prompt: Input should be a valid string"))
            return
        if body.get("model", self.fake.model) != self.fake.model:
            self._json(404, ERRORS[self.fake.kind](404, f"model {body['model']!r} not found"))
            return
        events = STREAMS[self.fake.kind](self.fake, body, self.fake.says(body))
        if body.get("stream", True):
            self._stream(events, fault.cut if fault else None)
        else:  # nobody here reads what it says
            self._json(200, {"choices": [{"text": "".join(events)}]})

    def _chat(self, body: Body) -> None:
        for name in self.fake.refuses:
            if name in body:
                said = f"{body['model']} does not support {name}"
                self._json(400, ERRORS[self.fake.kind](400, said))
                return
        message = next(self.fake._messages)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        usage = {"prompt_tokens": 30, "completion_tokens": 10}
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
        self._json(200, {"object": "chat.completion", "choices": [choice], "usage": usage})

    def _has_gone(self) -> bool:
        """A server that was shut down doesn't answer over connections that are still open."""
        self.close_connection = self.close_connection or self.fake.gone
        return self.fake.gone

    def _headers_seen(self) -> None:
        self.fake.headers.append({name.lower(): value for name, value in self.headers.items()})

    def _authorized(self) -> bool:
        if self.fake.key is None or self.headers.get("authorization") == f"Bearer {self.fake.key}":
            return True
        given = self.headers.get("authorization", "no key")
        self._json(401, ERRORS[self.fake.kind](401, f"wrong key: {given}"))
        return False

    def _play(self, fault: Fault) -> bool:
        if fault.hang:
            self.fake.released.wait(30)
            self.close_connection = True
            return True
        if fault.disconnect:
            self.close_connection = True
            return True
        if fault.cut is not None:
            return False
        self._send(fault.status, fault.body.encode(), fault.type, fault.headers)
        return True

    def _json(self, status: int, answer: Any) -> None:
        self._send(status, json.dumps(answer).encode(), "application/json", {})

    def _send(self, status: int, body: bytes, kind: str, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, lines: Iterable[str], cut: int | None) -> None:
        self.send_response(200)
        kind = "application/x-ndjson" if self.fake.kind == "ollama" else "text/event-stream; charset=utf-8"
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for number, line in enumerate(lines):
                if number == cut:
                    self.close_connection = True
                    self.wfile.flush()
                    return
                self.fake.released.wait(self.fake.pause)
                data = line.encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the client has gone
            self.fake.hung_up = True
            self.close_connection = True


def _sse(event: Mapping[str, Any], space: str = " ") -> str:
    return f"data:{space}{json.dumps(event, ensure_ascii=False)}\n\n"


def _pieces(text: str) -> list[str]:
    return [text[at : at + 4] for at in range(0, len(text), 4)]


# --- llama-server: tools/server/README.md


def _llama_get(fake: Fake, path: str) -> Answer:
    if path != "/props":
        return 404, ERRORS["llama-server"](404, "File Not Found")
    return 200, {
        "default_generation_settings": {"n_ctx": 4096},
        "total_slots": 1,
        "model_path": "models/tiny.gguf",
        "chat_template": CHATML,
        "bos_token": "",
        "eos_token": "<|im_end|>",
        "build_info": "b1-fake",
    }


def _llama_post(fake: Fake, path: str, body: Body) -> Answer:
    if path == "/tokenize":
        return 200, {"tokens": tokenize(body["content"], body.get("parse_special", True))}
    return 404, ERRORS["llama-server"](404, "File Not Found")


def _llama_stream(fake: Fake, body: Body, text: str) -> Iterator[str]:
    for character in text:
        ids = tokenize(character, False)
        yield _sse({"index": 0, "content": character, "tokens": ids[-1:], "stop": False})
    count = len(text)
    yield _sse(
        {
            "content": "",
            "tokens": [],
            "stop": True,
            "stop_type": "limit" if fake.ended == "length" else "eos",
            "tokens_predicted": count,
            "tokens_evaluated": len(body["prompt"]),
            "timings": {"cache_n": 3},
        }
    )


# --- OpenAI's completions, as vLLM, LM Studio and others answer them


def _openai_get(fake: Fake, path: str) -> Answer:
    if path == "/v1/models":
        model = {"id": fake.model, "object": "model", "owned_by": "vllm", "max_model_len": 4096}
        return 200, {"object": "list", "data": [model]}
    return 404, {"detail": "Not Found"}


def _openai_stream(fake: Fake, body: Body, text: str) -> Iterator[str]:
    def chunk(text: str, reason: str | None) -> Body:
        choice = {"index": 0, "text": text, "logprobs": {"tokens": []} if body.get("logprobs") else None}
        return {"object": "text_completion", "choices": [{**choice, "finish_reason": reason}]}

    for piece in _pieces(text):
        yield _sse(chunk(piece, None))
    yield _sse(chunk("", fake.ended))
    if fake.counts and body.get("stream_options"):
        length = len(body["prompt"])
        prompt_tokens = length if isinstance(body["prompt"], list) else length // 4
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(_pieces(text))}
        yield _sse({"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


# --- LM Studio: its OpenAI compatibility endpoints


def _studio_get(fake: Fake, path: str) -> Answer:
    if path == "/v1/models":  # all that are on disk; it loads the one that is asked for
        names = (fake.model, "text-embedding-nomic-embed-text-v1.5")
        data = [{"id": name, "object": "model", "owned_by": "organization_owner"} for name in names]
        return 200, {"object": "list", "data": data}
    return 200, {"error": f"Unexpected endpoint or method. (GET {path})"}


def _studio_post(fake: Fake, path: str, body: Body) -> Answer:
    return 200, {"error": f"Unexpected endpoint or method. (POST {path})"}


# --- SGLang: native APIs


def _sglang_get(fake: Fake, path: str) -> Answer:
    if path == "/get_model_info":
        return 200, {"model_path": "org/tiny", "tokenizer_path": "org/tiny", "is_generation": True}
    if path == "/get_server_info":
        return 200, {"version": "0.5.0", "context_length": 4096}
    return 404, {"detail": "Not Found"}


def _sglang_stream(fake: Fake, body: Body, text: str) -> Iterator[str]:
    pieces = _pieces(text)
    for number in range(1, len(pieces) + 1):
        last = number == len(pieces)
        meta = {
            "finish_reason": {"type": fake.ended, "matched": 2} if last else None,
            "prompt_tokens": 20,
            "completion_tokens": number,
            "cached_tokens": 5,
        }
        yield _sse({"text": "".join(pieces[:number]), "meta_info": meta})
    yield "data: [DONE]\n\n"


# --- Ollama: docs/api.md


def _ollama_get(fake: Fake, path: str) -> Answer:
    if path == "/api/tags":
        return 200, {"models": [{"name": fake.model}]}
    return 404, {"error": "not found"}


def _ollama_post(fake: Fake, path: str, body: Body) -> Answer:
    if path == "/api/show" and body["model"] == fake.model:
        return 200, {
            "template": "{{ .Prompt }}",
            "details": {"parameter_size": "135M", "quantization_level": "Q4_1"},
            "model_info": {"general.architecture": "llama", "llama.context_length": 8192},
        }
    return 404, {"error": f"model '{body.get('model')}' not found"}


def _ollama_stream(fake: Fake, body: Body, text: str) -> Iterator[str]:
    for piece in _pieces(text):
        yield json.dumps({"model": fake.model, "response": piece, "done": False}) + "\n"
    counts = {"prompt_eval_count": 20, "eval_count": len(_pieces(text)), "eval_duration": 10**8}
    yield json.dumps({"response": "", "done": True, "done_reason": fake.ended, **counts}) + "\n"


# --- TGI: its OpenAPI document


def _tgi_get(fake: Fake, path: str) -> Answer:
    if path == "/info":
        return 200, {"model_id": "org/tiny", "max_total_tokens": 4096, "version": "3.0.0"}
    return 404, {"error": "not found", "error_type": "not_found"}


def _tgi_stream(fake: Fake, body: Body, text: str) -> Iterator[str]:
    for number, piece in enumerate(_pieces(text)):
        token = {"id": number, "text": piece, "logprob": -0.1, "special": False}
        yield _sse({"token": token, "generated_text": None, "details": None}, space="")
    details = {
        "finish_reason": "length" if fake.ended == "length" else "eos_token",
        "generated_tokens": len(_pieces(text)),
        "seed": None,
    }
    token = {"id": 2, "text": "</s>", "logprob": -0.1, "special": True}
    yield _sse({"token": token, "generated_text": text, "details": details}, space="")


def _nothing(fake: Fake, path: str, body: Body) -> Answer:
    return 404, ERRORS[fake.kind](404, "not found")


GETS: dict[str, Callable[[Fake, str], Answer]] = {
    "llama-server": _llama_get,
    "openai": _openai_get,
    "lmstudio": _studio_get,
    "sglang": _sglang_get,
    "ollama": _ollama_get,
    "tgi": _tgi_get,
}
POSTS: dict[str, Callable[[Fake, str, Body], Answer]] = {
    "llama-server": _llama_post,
    "openai": _hub_tokenize,
    "lmstudio": _studio_post,
    "sglang": _hub_tokenize,
    "ollama": _ollama_post,
    "tgi": _nothing,
}
STREAMS: dict[str, Callable[[Fake, Body, str], Iterator[str]]] = {
    "llama-server": _llama_stream,
    "openai": _openai_stream,
    "lmstudio": _openai_stream,
    "sglang": _sglang_stream,
    "ollama": _ollama_stream,
    "tgi": _tgi_stream,
}
ERRORS: dict[str, Callable[[int, str], Body]] = {
    "llama-server": lambda code, said: {
        "error": {"code": code, "message": said, "type": "invalid_request_error"}
    },
    "openai": lambda code, said: {
        "error": {"message": said, "type": "BadRequestError", "param": None, "code": code}
    },
    "lmstudio": lambda code, said: {"error": said},
    "sglang": lambda code, said: {"object": "error", "message": said, "type": "BadRequest", "code": code},
    "ollama": lambda code, said: {"error": said},
    "tgi": lambda code, said: {"error": said, "error_type": "validation"},
}
GRAMMARS = {
    "llama-server": ("grammar", "json_schema"),
    "openai": ("structured_outputs.grammar", "structured_outputs.json", "structured_outputs.regex"),
    "sglang": ("ebnf", "json_schema", "regex"),
    "ollama": ("format",),
    "tgi": ("grammar",),
}
"""What a current version of each enforces."""


@contextmanager
def serving(fake: Fake, port: int = 0) -> Iterator[Fake]:
    """The fake on a port (of its own, by default), until the end of the block."""
    handler = type("Handler", (_Handler,), {"fake": fake})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    fake.gone = False
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        fake.gone = True
        fake.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def wait_until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    """Give another thread the time to get somewhere."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)

"""Servers that fail, in every way that was thought of: bounded tries before the first byte, none after."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from localreact import Agent
from localreact.endpoints.address import parse_addresses
from localreact.endpoints.http import Patience
from localreact.endpoints.resolve import open_endpoint, open_server
from localreact.endpoints.server import ServerEndpoint
from localreact.errors import EndpointError
from localreact.run import Run
from localreact.tools.decorator import Tool, tool
from localreact.trace.jsonl import read_trace
from localreact.types import Completion, Limits, Prompt, Sampling, Segment
from tests.fakes import GRAMMARS, Fake, Fault, serving, wait_until

CALL = (
    '{"thought": "I should look it up.", "type": "tool_call", "tool": "stock", "arguments": {"sku": "bolt"}}'
)
FINISH = '{"thought": "The result is there.", "type": "finish", "answer": "3"}'
SHORT = Patience(tries=3, first_wait=0.01, longest_wait=0.5, connect=5, idle=20)
KEY = "sk-very-secret-123"


@contextmanager
def opened(fake: Fake, patience: Patience = SHORT) -> Iterator[ServerEndpoint]:
    endpoint = open_server(parse_addresses(fake.address)[0], patience=patience)
    try:
        yield endpoint
    finally:
        endpoint.close()


def run_with(fake: Fake, stock: Tool, trace: Path, patience: Patience = SHORT) -> Run:
    with serving(fake), opened(fake, patience) as endpoint:
        return Agent(endpoint, [stock], trace=trace).run("How many bolts?")


@pytest.mark.parametrize(
    "fault",
    [
        Fault(429, '{"error": "busy"}', headers={"Retry-After": "0.05"}),
        Fault(429, '{"error": "busy"}', headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        Fault(502, "<html>Bad gateway</html>", "text/html"),
        Fault(503, '{"error": {"message": "Loading model"}}'),
        Fault(504),
        Fault(disconnect=True),
        Fault(hang=True),
    ],
    ids=["429", "429 with a date", "502", "503", "504", "disconnect", "time-out"],
)
@pytest.mark.parametrize("kind", ["llama-server", "openai"])
def test_what_passes_before_the_first_byte_is_tried_again(
    kind: str, fault: Fault, stock: Tool, tmp_path: Path
) -> None:
    faults = [fault] if fault.hang else [fault, fault]
    fake = Fake(kind, [CALL, FINISH], faults=list(faults))
    patience = replace(SHORT, idle=1.5) if fault.hang else SHORT
    run = run_with(fake, stock, tmp_path / "run.jsonl", patience)
    assert (run.status, run.answer) == ("finished", "3")
    assert len(fake.completions) == 2 + len(faults)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(500, '{"error": {"message": "CUDA out of memory"}}'), "answered 500: CUDA out of memory"),
        (Fault(400, '{"detail": [{"msg": "bad field"}]}'), "answered 400: bad field"),
        (Fault(400, "plain words"), "answered 400: plain words"),
        (Fault(200, "<html>Welcome</html>", "text/html"), "answered text/html, not JSON"),
        (Fault(200, "data: {broken\n\n", "text/event-stream"), "answered no JSON: .*broken"),
        (Fault(200, "what is this\n", "text/event-stream"), "streamed what is no event"),
        (Fault(200, 'data: {"other": "shape"}\n\n', "text/event-stream"), "another shape|in the middle"),
        (Fault(200, 'data: ["list"]\n\n', "text/event-stream"), "streamed list"),
        (
            Fault(200, 'data: {"error": {"message": "slot lost", "code": 500}}\n\n', "text/event-stream"),
            "slot lost",
        ),
        (Fault(200, 'error: {"code": 500, "message": "slot lost"}\n\n', "text/event-stream"), "slot lost"),
        (Fault(200, "", "text/event-stream"), "in the middle of a turn"),
        (Fault(307, headers={"location": "http://elsewhere/"}), "redirects to http://elsewhere/"),
        (Fault(429, '{"error": "quota"}', headers={"Retry-After": "3600"}), "asks to wait 3600 seconds"),
    ],
)
@pytest.mark.parametrize("kind", ["llama-server", "openai"])
def test_what_does_not_pass_ends_the_run_with_what_was_said(
    kind: str, fault: Fault, said: str, stock: Tool, tmp_path: Path
) -> None:
    trace = tmp_path / "run.jsonl"
    fake = Fake(kind, [CALL, FINISH], faults=[fault])
    run = run_with(fake, stock, trace)
    assert run.status == "endpoint_error"
    assert re.search(said, run.reason)
    assert len(fake.completions) == 1
    assert run.answer is None
    assert read_trace(trace)[-1]["event"] == "RunEnded"


def test_tries_are_bounded(stock: Tool, tmp_path: Path) -> None:
    fake = Fake("openai", [CALL], faults=[Fault(503, '{"error": "overloaded"}')] * 10)
    run = run_with(fake, stock, tmp_path / "run.jsonl")
    assert run.status == "endpoint_error"
    assert "503: overloaded" in run.reason
    assert len(fake.completions) == SHORT.tries


@pytest.mark.parametrize("kind", list(GRAMMARS))
def test_a_stream_cut_in_the_middle_is_never_glued_or_acted_on(kind: str, tmp_path: Path) -> None:
    executed: list[str] = []

    @tool
    def stock(sku: str) -> int:
        """How many are left."""
        executed.append(sku)
        return 3

    trace = tmp_path / "run.jsonl"
    fake = Fake(kind, [CALL, FINISH, FINISH], faults=[Fault(), Fault(cut=4)])
    fake.faults[0].cut = 10**6  # the first turn comes whole
    with serving(fake), opened(fake) as endpoint:
        run = Agent(endpoint, [stock], trace=trace).run("How many bolts?")
    assert run.status == "endpoint_error"
    assert "broke off" in run.reason or "in the middle" in run.reason
    assert executed == ["bolt"]
    assert len(fake.completions) == 2
    assert read_trace(trace)[-1]["status"] == "endpoint_error"


def test_a_server_that_dies_and_comes_back_is_waited_for(stock: Tool) -> None:
    """The second turn meets a closed port, then a server that has started meanwhile."""
    patience = Patience(tries=8, first_wait=0.02, connect=1, idle=5)
    first = Fake("openai", [CALL])
    with serving(first):
        endpoint = open_server(parse_addresses(first.address)[0], patience=patience)
        running = Agent(endpoint, [stock]).stream("How many bolts?")
        for event in running:
            if type(event).__name__ == "ToolEnded":
                break
    port = int(first.url.rpartition(":")[2])
    second = Fake("openai", [FINISH])
    with ExitStack() as stack:
        back = threading.Timer(0.1, lambda: stack.enter_context(serving(second, port)))
        back.start()
        for _ in running:
            pass
        back.join()
        assert running.outcome.answer == "3"
        assert len(second.completions) == 1
        endpoint.close()


def test_nobody_there_is_said_with_the_address() -> None:
    with pytest.raises(EndpointError, match=r"http://127.0.0.1:9 can't be reached \(2 tries\)"):
        open_server(parse_addresses("llama-server:http://127.0.0.1:9")[0])


@pytest.mark.parametrize("kind", list(GRAMMARS))
def test_the_wrong_key_is_said_and_no_key_is_ever_repeated(
    kind: str, stock: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALREACT_API_KEY", KEY)
    with serving(Fake(kind, key="another")) as fake, pytest.raises(EndpointError) as caught:
        open_server(parse_addresses(fake.address)[0])
    assert "answered 401: wrong key: Bearer ***" in str(caught.value)
    assert "LOCALREACT_API_KEY" in str(caught.value)
    assert KEY not in str(caught.value)


def test_the_key_comes_from_the_environment_and_stays_out_of_the_trace(
    stock: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "run.jsonl"
    monkeypatch.delenv("LOCALREACT_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    fake = Fake("openai", [CALL, FINISH], key=KEY, faults=[])
    with serving(fake), opened(fake) as endpoint:
        fake.faults = [Fault(500, json.dumps({"error": f"bad request by {KEY}"}))]
        run = Agent(endpoint, [stock], trace=trace).run("How many bolts?")
    assert run.status == "endpoint_error"
    assert "bad request by ***" in run.reason
    assert KEY not in trace.read_text()
    with serving(Fake("ollama", key=KEY)) as other, pytest.raises(EndpointError, match="401"):
        open_server(parse_addresses(other.address)[0])  # OpenAI's key is for openai: only
    assert not any(KEY in str(headers) for headers in other.headers)


def test_a_missing_model_is_named() -> None:
    with serving(Fake("ollama")) as fake, pytest.raises(EndpointError, match="model 'nothing' not found"):
        open_server(parse_addresses(fake.address.replace("tiny", "nothing"))[0])
    with (
        serving(Fake("openai")) as fake,
        pytest.raises(EndpointError, match=r"no model 'nothing'(.|\n)*tiny"),
    ):
        open_server(parse_addresses(fake.address.replace("tiny", "nothing"))[0])


@pytest.mark.parametrize("kind", list(GRAMMARS))
def test_a_server_of_another_kind_is_found_out(kind: str) -> None:
    other = "tgi" if kind != "tgi" else "llama-server"
    with serving(Fake(other)) as fake, pytest.raises(EndpointError):
        open_endpoint(f"{kind}:{fake.url}#tiny")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            "llama-server",
            {"error": {"code": 400, "message": "too long", "type": "exceed_context_size_error"}},
        ),
        ("llama-server", {"error": {"message": "the request exceeds the available context size, try it"}}),
        ("openai", {"error": {"message": "This model's maximum context length is 5 tokens", "code": 400}}),
        ("openai", {"object": "error", "message": "This model's maximum context length is 5 tokens."}),
        ("openai", {"error": "Trying to keep the first 9 tokens when context the overflows."}),
        (
            "sglang",
            {"error": {"message": "The input (9 tokens) is longer than the model's context length (5)."}},
        ),
        (
            "sglang",
            {"error": {"message": "Requested token count exceeds the model's maximum context length"}},
        ),
        ("ollama", {"error": "the input length exceeds the context length"}),
        ("tgi", {"error": "Input validation error: `inputs` must have less than 5 tokens. Given: 9"}),
        (
            "tgi",
            {
                "error": "`inputs` tokens + `max_new_tokens` must be <= 5. Given: 9",
                "error_type": "validation",
            },
        ),
    ],
)
def test_a_prompt_that_is_too_long_is_an_overflow(
    kind: str, said: dict[str, object], stock: Tool, tmp_path: Path
) -> None:
    fake = Fake(kind, [CALL], faults=[Fault(400, json.dumps(said))])
    assert run_with(fake, stock, tmp_path / "run.jsonl").status == "context_overflow"


def completed(endpoint: ServerEndpoint) -> Completion:
    writing = endpoint.complete(PROMPT, None, Limits(50), Sampling())
    while True:
        try:
            next(writing)
        except StopIteration as end:
            completion: Completion = end.value
            return completion


PROMPT = Prompt((Segment("x"),))
LONG = Patience(idle=60)


@pytest.mark.parametrize("faults", [[Fault(hang=True)], [Fault(503)] * 100], ids=["hang", "retries"])
def test_a_deadline_ends_whatever_is_waited_for(faults: list[Fault]) -> None:
    fake = Fake("openai", ["hello"], faults=faults)
    with serving(fake), opened(fake, LONG) as endpoint:
        started = time.monotonic()
        writing = endpoint.complete(PROMPT, None, Limits(5, deadline=started + 0.3), Sampling())
        with pytest.raises(StopIteration) as end:
            next(writing)
        assert end.value.value.stop == "deadline"
        assert time.monotonic() - started < 1.3


def test_a_cancel_ends_a_blocked_read_and_hangs_up() -> None:
    fake = Fake("openai", ["hello"], faults=[Fault(hang=True)])
    cancel = threading.Event()
    with serving(fake), opened(fake, LONG) as endpoint:
        threading.Timer(0.1, cancel.set).start()
        started = time.monotonic()
        writing = endpoint.complete(PROMPT, None, Limits(5, cancel=cancel), Sampling())
        with pytest.raises(StopIteration) as end:
            next(writing)
        assert end.value.value.stop == "cancelled"
        assert time.monotonic() - started < 1.1


def test_a_run_over_a_hung_server_keeps_its_deadline(stock: Tool) -> None:
    fake = Fake("llama-server", [CALL], faults=[Fault(hang=True)])
    with serving(fake), opened(fake, LONG) as endpoint:
        started = time.monotonic()
        run = Agent(endpoint, [stock], deadline=0.8).run("How many bolts?")
        assert run.status == "deadline"
        assert time.monotonic() - started < 2


def test_more_runs_than_connections_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localreact.endpoints.http.CONNECTIONS", 1)
    fake = Fake("openai", ["hello, you there"] * 3, pause=0.1)
    impatient = Patience(tries=1, connect=1, idle=0.45)
    with serving(fake), opened(fake, impatient) as endpoint:
        texts: list[str] = []
        threads = [threading.Thread(target=lambda: texts.append(completed(endpoint).text)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts == ["hello, you there"] * 3


def test_a_stream_that_is_not_read_on_is_hung_up() -> None:
    fake = Fake("openai", ["word " * 200_000])
    with serving(fake), opened(fake, LONG) as endpoint:
        writing = endpoint.complete(PROMPT, None, Limits(5), Sampling())
        assert next(writing).text
        writing.close()
        wait_until(lambda: fake.hung_up)


def test_lines_end_at_newlines_only_and_characters_stay_whole() -> None:
    text = "a\u2028b\u0085c\x0b日本 🎉"
    fake = Fake("openai", [text])
    with serving(fake), opened(fake) as endpoint:
        spans = list(endpoint.complete(PROMPT, None, Limits(50), Sampling()))
        assert "".join(span.text for span in spans) == text


def test_a_character_in_two_pieces_is_one() -> None:
    chunk = 'data: {"choices": [{"text": "TEXT", "finish_reason": null}]}\n\n'
    halves = chunk.replace("TEXT", r"a\ud83c") + chunk.replace("TEXT", r"\udf89")
    end = 'data: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    fake = Fake("openai", faults=[Fault(body=halves + end, type="text/event-stream")])
    with serving(fake), opened(fake) as endpoint:
        assert completed(endpoint).text == "a🎉"


@pytest.mark.parametrize("kind", ["llama-server", "openai"])
def test_a_name_that_is_no_unicode_reaches_the_server_as_a_question_mark(kind: str, tmp_path: Path) -> None:
    """A file's name in another encoding has lone surrogates in Python."""

    @tool
    def stock(sku: str) -> str:
        """The shelf that an article is on."""
        return "caf\udce9.txt"

    fake = Fake(kind, [CALL, FINISH])
    run = run_with(fake, stock, tmp_path / "run.jsonl")
    assert (run.status, run.answer) == ("finished", "3")
    observed = run.steps[0].observation
    assert observed is not None
    assert observed.content == "caf\udce9.txt"
    assert "caf?.txt" in fake.prompt(fake.completions[-1])


def test_what_cannot_be_sent_is_an_error_of_the_endpoint() -> None:
    with (
        serving(Fake("llama-server")) as fake,
        opened(fake) as endpoint,
        pytest.raises(EndpointError, match="/tokenize: TypeError"),
    ):
        endpoint.dialect.transport.post("/tokenize", {"content": object()})


def test_what_comes_after_the_end_of_a_turn_does_no_harm() -> None:
    end = 'data: {"choices": [{"text": "hello", "finish_reason": "stop"}]}\n\n'
    for tail in ("data: [DONE]\n\nnonsense", "nonsense", 'data: {"error": "late"}\n\n'):
        fake = Fake("openai", faults=[Fault(body=end + tail, type="text/event-stream")])
        with serving(fake), opened(fake) as endpoint:
            assert completed(endpoint).text == "hello"


def test_an_answer_that_was_not_streamed_is_read_all_the_same() -> None:
    body = json.dumps({"choices": [{"text": "hello", "finish_reason": "stop"}]}, indent=2)
    fake = Fake("openai", faults=[Fault(body=body)])
    with serving(fake), opened(fake) as endpoint:
        assert completed(endpoint).text == "hello"


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localreact.endpoints.http.MAX_BYTES", 10_000)
    fake = Fake("openai", ["word " * 20_000])
    with serving(fake), opened(fake) as endpoint, pytest.raises(EndpointError, match="answered more than"):
        list(endpoint.complete(PROMPT, None, Limits(5), Sampling()))

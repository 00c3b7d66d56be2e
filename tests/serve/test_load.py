from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from localreact.endpoints import server as of_servers
from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.resolve import open_endpoint
from localreact.endpoints.scripted import ScriptedEndpoint
from localreact.endpoints.server import ServerEndpoint
from localreact.grammar import validation
from localreact.types import Completion, Limits, Prompt, Sampling, Span, TurnGrammar
from tests.fakes import GRAMMARS, Fake, wait_until
from tests.fakes import serving as fake_serving
from tests.serve.server import Json, asked, delta_texts, serving, tool
from tests.serve.streams import FINISH

ANTHROPIC_TOOL: Json = {"name": "stock", "input_schema": {"type": "object", "properties": {}}}


class Slow(ScriptedEndpoint):
    """Writes until it is released, or cancelled."""

    def __init__(self) -> None:
        super().__init__([])
        self.released = threading.Event()
        self.writing = 0
        self.cancelled = 0

    def complete(
        self, prompt: Prompt, grammar: TurnGrammar | None, limits: Limits, sampling: Sampling, turn: int = 0
    ) -> Generator[Span, None, Completion]:
        assert limits.cancel is not None
        self.writing += 1
        try:
            while not self.released.wait(0.01):
                if limits.cancel.is_set():
                    self.cancelled += 1
                    return Completion("", "cancelled")
                yield Span("sampled", "x")
            return Completion("x", "eog")
        finally:
            self.writing -= 1


def test_beyond_the_queue_requests_are_sent_away_and_served_later() -> None:
    slow = Slow()
    with serving(slow, parallel=2, queue=1) as server, ThreadPoolExecutor() as pool:
        places = server.state.desk.places
        under_way = [pool.submit(server.post, "/v1/chat/completions", asked("x")) for _ in range(3)]
        wait_until(lambda: places.active == 2 and places.waiting == 1)
        answer = server.post("/v1/chat/completions", asked("x"))
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "queue_full"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        slow.released.set()
        assert [each.result().status_code for each in under_way] == [200] * 3
        wait_until(lambda: server.idle)
        assert server.post("/v1/chat/completions", asked("x")).status_code == 200


def test_more_replies_than_there_are_places_is_the_clients_fault() -> None:
    with serving(Slow(), parallel=2, queue=1) as server:
        assert server.refused(422, **asked("x", n=4))["param"] == "n"
        assert server.idle


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_place(stream: bool) -> None:
    slow = Slow()
    with serving(slow, parallel=1) as server:
        server.leave("/v1/chat/completions", asked("x", stream=stream), lambda: slow.writing == 1)
        wait_until(lambda: slow.cancelled == 1 and server.idle)


def test_one_that_waits_and_goes_away_is_never_begun() -> None:
    slow = Slow()
    with serving(slow, parallel=1) as server, ThreadPoolExecutor() as pool:
        first = pool.submit(server.post, "/v1/chat/completions", asked("x"))
        wait_until(lambda: slow.writing == 1)
        places = server.state.desk.places
        server.leave("/v1/chat/completions", asked("y"), lambda: places.waiting == 1)
        wait_until(lambda: places.waiting == 0)
        slow.released.set()
        assert first.result().status_code == 200
        assert len(slow.prompts) == 0
        wait_until(lambda: server.idle)


def test_a_request_has_its_time() -> None:
    with serving(Slow(), request_seconds=0.2) as server:
        error = server.refused(504, **asked("x"))
        assert (error["code"], error["type"]) == ("timeout", "timeout_error")
        assert server.refused(504, "/v1/messages", max_tokens=9, **asked("x"))["type"] == "timeout_error"
        wait_until(lambda: server.idle)


def test_stopping_ends_what_is_under_way() -> None:
    slow = Slow()
    with serving(slow) as server, ThreadPoolExecutor() as pool:
        under_way = pool.submit(server.post, "/v1/chat/completions", asked("x"))
        wait_until(lambda: slow.writing == 1)
        server.state.desk.cancel_all()
        assert under_way.result().status_code == 503


def test_a_grammar_has_its_time_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    endpoint = ScriptedEndpoint([])
    monkeypatch.setattr(endpoint, "count", lambda prompt: released.wait(5) and 1)
    with serving(endpoint, compile_seconds=0.1) as server:
        assert server.refused(400, **asked("x"))["code"] == "not_enforceable"
        assert server.idle
        released.set()


@pytest.fixture
def remote() -> Iterator[tuple[Fake, ServerEndpoint]]:
    """A llama-server, and the endpoint that asks it."""
    with fake_serving(Fake("llama-server", [FINISH] * 20, enforces=GRAMMARS["llama-server"])) as fake:
        endpoint = open_endpoint(fake.address)
        assert isinstance(endpoint, ServerEndpoint)
        yield fake, endpoint
        fake.released.set()
        endpoint.close()


def test_a_server_that_is_busy_is_no_fault_of_the_grammar(
    remote: tuple[Fake, ServerEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, endpoint = remote
    monkeypatch.setattr(endpoint, "check", lambda grammar: fake.released.wait(30))
    with serving(endpoint, compile_seconds=0.1, request_seconds=0.6) as server:
        for path, tools in (("/v1/chat/completions", tool()), ("/v1/messages", ANTHROPIC_TOOL)):
            answer = server.post(path, asked("x", max_tokens=9, tools=[tools]))
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
            assert "busy" in answer.json()["error"]["message"]
            wait_until(lambda: server.idle)


def test_those_that_wait_for_a_server_hold_up_nobody_else(
    remote: tuple[Fake, ServerEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, endpoint = remote
    monkeypatch.setattr(endpoint, "check", lambda grammar: fake.released.wait(30))
    body = asked("x", tools=[tool()])
    with serving(endpoint) as server, ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(server.post, "/v1/chat/completions", body) for _ in range(20)]
        wait_until(lambda: server.state.desk.places.waiting == 20)
        assert server.post("/v1/messages/count_tokens", asked("x")).status_code == 200
        assert not any(each.done() for each in waiting)
        fake.released.set()
        assert {each.result().status_code for each in waiting} == {200}


def test_a_server_that_takes_too_long_for_a_grammar_is_busy_too(
    remote: tuple[Fake, ServerEndpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, endpoint = remote
    monkeypatch.setattr(of_servers, "LONGEST_CHECK", 0.1)
    fake.pause = 5
    with serving(endpoint) as server:
        answer = server.post("/v1/chat/completions", asked("x", tools=[tool()]))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")


def test_a_schema_is_looked_at_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes long holds up nobody else."""
    entered, released = threading.Event(), threading.Event()

    def slow(schema: object) -> None:
        entered.set()
        assert released.wait(30)

    monkeypatch.setattr(validation, "check_schema", slow)
    with serving(ScriptedEndpoint([])) as server, ThreadPoolExecutor() as pool:
        for path, body in (
            ("/v1/chat/completions", asked("x", tools=[tool()])),
            ("/v1/messages/count_tokens", asked("x", tools=[ANTHROPIC_TOOL])),
        ):
            entered.clear()
            under_way = pool.submit(server.post, path, body)
            wait_until(entered.is_set)
            assert server.client.get("/health").status_code == 200
            released.set()
            assert under_way.result().status_code in (200, 502)
            released.clear()


def test_clients_at_a_time_get_each_its_own(tiny: LlamaEndpoint) -> None:
    with serving(tiny, parallel=4, queue=40) as server, ThreadPoolExecutor(12) as pool:

        def call(number: int) -> str:
            fields: Json = {"tools": [tool(f"tool_{number}")], "tool_choice": "required", "seed": number}
            message = server.message(temperature=1.0, max_tokens=700, **fields)
            name: str = message["tool_calls"][0]["function"]["name"]
            return name

        assert list(pool.map(call, range(24))) == [f"tool_{number}" for number in range(24)]
        wait_until(lambda: server.idle)


def test_conversations_that_take_turns_are_not_read_again(tiny: LlamaEndpoint) -> None:
    fields: Json = {
        "tools": [tool()],
        "tool_choice": "required",
        "temperature": 1.0,
        "seed": 1,
        "max_tokens": 700,
    }
    with serving(tiny) as server:
        histories = []
        for text in ("first " * 30, "second " * 30):
            message = server.message(text, **fields)
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"}
            histories.append([{"role": "user", "content": text}, message, result])
        for history in histories:
            answer = server.post("/v1/chat/completions", {**fields, "messages": history}).json()
            usage = answer["usage"]
            assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 100


def test_a_real_model_stops_within_a_step_of_a_client_that_goes_away(tiny: LlamaEndpoint) -> None:
    body = asked("x", stream=True, max_tokens=3500, temperature=1.0, tools=[tool()], tool_choice="none")
    with serving(tiny) as server:
        with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            for _ in range(6):
                next(lines)
        wait_until(lambda: server.idle)
        assert delta_texts(server.chunks(max_tokens=5), "content")

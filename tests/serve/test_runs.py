"""The agent over HTTP."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from localreact import ScriptedEndpoint, Tool, tool
from localreact.endpoints.llama import LlamaEndpoint
from localreact.protocols import JsonProtocol
from localreact.serve import book, runs
from localreact.trace import store
from localreact.trace.reading import load
from localreact.types import Finish, ToolCall
from tests.fakes import wait_until
from tests.serve.gate import Gate
from tests.serve.server import Json, Server, running, serving

WRITE = JsonProtocol().write
CALL = WRITE(ToolCall("I look it up.", "stock", {"sku": "A7"}))
FINISH = WRITE(Finish("I know it now.", answer="3"))
RUNS = "/v1/runs"


def ask(server: Server, question: str = "How many?", **fields: Any) -> Json:
    answer = server.post(RUNS, {"question": question, **fields})
    assert answer.status_code in (200, 202), answer.text
    found: Json = answer.json()
    return found


def get(server: Server, path: str, status: int = 200) -> Json:
    answer = server.client.get(f"{RUNS}{path}")
    assert answer.status_code == status, answer.text
    found: Json = answer.json()
    return found


def events_of(lines: Iterator[str]) -> Iterator[tuple[int, Json]]:
    fields: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            event = json.loads(fields["data"])
            assert event["event"] == fields["event"]
            yield int(fields["id"]), event
            fields = {}


def streamed(server: Server, question: str = "How many?", **fields: Any) -> list[Json]:
    body = {"question": question, "stream": True, **fields}
    with server.client.stream("POST", RUNS, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        numbered = list(events_of(answer.iter_lines()))
    assert [number for number, _ in numbered] == list(range(len(numbered)))
    return [event for _, event in numbered]


def heard(
    server: Server, run_id: str, after: int | None = None, headers: dict[str, str] | None = None
) -> list[tuple[int, Json]]:
    params = {} if after is None else {"after": str(after)}
    with server.client.stream("GET", f"{RUNS}/{run_id}/events", params=params, headers=headers) as answer:
        assert answer.status_code == 200
        return list(events_of(answer.iter_lines()))


# --- a run


def test_without_tools_there_are_no_runs() -> None:
    with serving(ScriptedEndpoint([])) as server:
        assert server.refused(404, RUNS, question="x")["code"] == "runs_off"
        for path in ("", "/choices", "/20260101-000000-00000000", "/20260101-000000-00000000/events"):
            assert get(server, path, 404)["error"]["code"] == "runs_off"


def test_a_question_is_worked_on_with_the_servers_tools(stock: Tool) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[stock]) as server:
        run = ask(server, " How many? ")
        assert (run["status"], run["answer"], run["question"]) == ("finished", "3", "How many?")
        first, last = run["steps"]
        assert (first["thought"], first["tool"], first["arguments"]) == (
            "I look it up.",
            "stock",
            {"sku": "A7"},
        )
        assert first["observation"] == {
            "content": "3",
            "ok": True,
            "executed": True,
            "unknown": False,
            "seconds": first["observation"]["seconds"],
        }
        assert (last["answer"], last["missing"]) == ("3", None)
        assert run["usage"]["generated"] > 0
        assert get(server, f"/{run['id']}") == run
        assert server.idle
        path = store.of_run(run["id"])
        assert path is not None
        assert load(path).started.question == "How many?"


def test_its_events_come_as_they_happen(stock: Tool) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[stock]) as server:
        events = streamed(server)
    names = [event["event"] for event in events]
    assert [name for name in names if name not in ("TextDelta", "SpanWritten")] == [
        "RunStarted",
        *("StepStarted", "TurnCompleted", "TurnRead", "ToolStarted", "ToolEnded"),
        *("StepStarted", "TurnCompleted", "TurnRead"),
        "RunEnded",
    ]
    thought = [e["text"] for e in events if e["event"] == "TextDelta" and e["field"] == "thought"]
    assert "".join(thought) == "I look it up.I know it now."
    written = [e["span"] for e in events if e["event"] == "SpanWritten"]
    assert [each["text"] for each in written] == [CALL, FINISH]


def test_a_run_that_goes_on_is_seen_and_heard_by_others(gate: Gate) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[gate.tool]) as server:
        begun = ask(server, background=True)
        assert begun["status"] in ("queued", "running")
        assert gate.entered.wait(10)
        now = get(server, f"/{begun['id']}")
        assert (now["status"], len(now["steps"])) == ("running", 1)
        listening: list[tuple[int, Json]] = []
        thread = threading.Thread(target=lambda: listening.extend(heard(server, begun["id"])))
        thread.start()
        gate.open.set()
        thread.join(10)
        assert [event["event"] for _, event in listening][-1] == "RunEnded"
        assert get(server, f"/{begun['id']}")["answer"] == "3"


def test_who_listens_to_a_silent_run_hears_that_it_is_still_there(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "STILL_HERE", 0.05)
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[gate.tool]) as server:
        run_id = ask(server, background=True)["id"]
        with server.client.stream("GET", f"{RUNS}/{run_id}/events") as answer:
            lines = answer.iter_lines()
            assert next(line for line in lines if line.startswith(":")) == ": still here"
            gate.open.set()
            assert [event for _, event in events_of(lines)][-1]["answer"] == "3"


def test_its_events_can_be_heard_again_and_from_the_middle(stock: Tool) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[stock]) as server:
        all_ = streamed(server)
        run_id = all_[0]["run_id"]
        kept = [each for each in enumerate(all_) if each[1]["event"] not in ("TextDelta", "SpanWritten")]
        assert heard(server, run_id) == kept
        assert heard(server, run_id, after=kept[3][0]) == kept[4:]
        assert heard(server, run_id, headers={"last-event-id": str(kept[3][0])}) == kept[4:]
        assert heard(server, run_id, after=len(all_)) == []


# --- runs of before


def test_the_newest_runs_are_listed_first_with_those_recorded_elsewhere(stock: Tool) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[stock]) as server:
        before = ask(server, "before")
    with serving(ScriptedEndpoint([CALL, FINISH, CALL, FINISH]), tools=[stock]) as server:
        ids = [before["id"]] + [ask(server, f"question {number}")["id"] for number in range(2)]
        listed = get(server, "")["data"]
        assert {each["id"] for each in listed} == set(ids)
        assert [each["created"] for each in listed] == sorted((e["created"] for e in listed), reverse=True)
        assert len(get(server, "?limit=1")["data"]) == 1
        old = get(server, f"/{before['id']}")
        same = ("id", "status", "answer", "question", "tools", "usage", "evidence", "level")
        assert [old[key] for key in same] == [before[key] for key in same]
        assert [s.get("arguments") for s in old["steps"]] == [s.get("arguments") for s in before["steps"]]
        assert [event["event"] for _, event in heard(server, before["id"])][-1] == "RunEnded"
        assert server.client.get(f"{RUNS}/{before['id']}/page").status_code == 200
        assert server.post(f"{RUNS}/{before['id']}/cancel", {}).json()["status"] == "finished"


def test_only_so_many_runs_stay_in_memory(stock: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "KEPT", 2)
    made: list[book.RunBook] = []

    class Watched(book.RunBook):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(runs, "RunBook", Watched)
    with serving(ScriptedEndpoint([CALL, FINISH] * 4), tools=[stock]) as server:
        ids = [ask(server)["id"] for _ in range(4)]
        assert [run.run_id for run in made[0].runs] == ids[:1:-1]
        assert get(server, f"/{ids[0]}")["answer"] == "3"  # its trace is there


@pytest.mark.parametrize(
    "name",
    ["20260101-000000-00000000", "last", "../secret", "%2e%2e%2fsecret", "..%2Fx.jsonl", "a" * 5000, "%00"],
)
@pytest.mark.parametrize("what", ["", "/events", "/page"])
def test_what_is_no_run_is_not_found_and_no_path_is_made_of_it(
    stock: Tool, name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.folder() / "..").mkdir(parents=True, exist_ok=True)
    (store.folder().parent / "secret").write_text("{}")
    with serving(ScriptedEndpoint([]), tools=[stock]) as server:
        answer = server.client.get(f"{RUNS}/{name}{what}")
        assert answer.status_code == 404, answer.text


def test_who_comes_from_elsewhere_sees_only_the_servers_own_runs(stock: Tool) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[stock]) as server:
        before = ask(server)["id"]
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[stock], host="0.0.0.0", api_key="key") as server:
        assert server.client.get(RUNS).status_code == 401
        server.client.headers["authorization"] = "Bearer key"
        own = ask(server)["id"]
        assert [each["id"] for each in get(server, "")["data"]] == [own]
        get(server, f"/{before}", 404)
        assert server.client.get(f"{RUNS}/{before}/events").status_code == 404


# --- ending one


def test_a_cancelled_run_ends_within_a_step(gate: Gate) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[gate.tool]) as server:
        begun = ask(server, background=True)
        assert gate.entered.wait(10)
        server.post(f"{RUNS}/{begun['id']}/cancel", {})
        assert heard(server, begun["id"])[-1][1]["status"] == "cancelled"
        wait_until(lambda: server.idle)
        assert server.post(f"{RUNS}/{begun['id']}/cancel", {}).json()["status"] == "cancelled"


def test_a_run_that_waits_is_cancelled_at_once(gate: Gate) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[gate.tool], parallel=1) as server:
        first = ask(server, background=True)
        assert gate.entered.wait(10)
        second = ask(server, background=True)
        assert second["status"] == "queued"
        server.post(f"{RUNS}/{second['id']}/cancel", {})
        assert heard(server, second["id"])[-1][1]["status"] == "cancelled"
        assert get(server, f"/{first['id']}")["status"] == "running"
        gate.open.set()
        assert heard(server, first["id"])[-1][1]["answer"] == "3"
        wait_until(lambda: server.idle)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_cancels_its_run(gate: Gate, stream: bool) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[gate.tool]) as server:
        server.leave(RUNS, {"question": "How many?", "stream": stream}, gate.entered.is_set)
        wait_until(lambda: server.idle)
        assert get(server, "")["data"][0]["status"] == "cancelled"


def test_a_run_in_the_background_outlives_its_client(gate: Gate) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[gate.tool]) as server:
        body = {"question": "How many?", "stream": True, "background": True}
        server.leave(RUNS, body, gate.entered.is_set)
        (run,) = get(server, "")["data"]
        assert run["status"] == "running"
        gate.open.set()
        assert heard(server, run["id"])[-1][1]["answer"] == "3"


def test_a_full_queue_sends_runs_away(gate: Gate) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[gate.tool], parallel=1, queue=0) as server:
        ask(server, background=True)
        answer = server.post(RUNS, {"question": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        gate.open.set()
        wait_until(lambda: server.idle)


def test_a_run_ends_when_its_time_is_up(gate: Gate) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[gate.tool], request_seconds=0.3) as server:
        assert ask(server, deadline=100)["status"] == "deadline"


def test_stopping_the_server_stops_its_runs(gate: Gate) -> None:
    with serving(ScriptedEndpoint([CALL, FINISH]), tools=[gate.tool]) as server:
        run_id = ask(server, background=True)["id"]
        assert gate.entered.wait(10)
    path = store.of_run(run_id)
    assert path is not None
    wait_until(lambda: load(path).ended is not None)
    ended = load(path).ended
    assert ended is not None
    assert ended.status == "cancelled"


def test_a_fault_of_ours_ends_the_run_and_is_told_to_nobody(
    stock: Tool, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO),
        serving(ScriptedEndpoint([RuntimeError("SECRET")]), tools=[stock]) as server,
    ):
        run = ask(server)
        assert (run["status"], run["reason"]) == ("endpoint_error", "the server failed; its log says why")
        assert server.idle
    assert "RuntimeError in a run" in caplog.text
    assert "SECRET" not in caplog.text


# --- what can be asked for


def test_tools_are_picked_by_name(stock: Tool) -> None:
    @tool
    def price(sku: str) -> int:
        """What an article costs."""
        return 5

    endpoint = ScriptedEndpoint([FINISH])
    with serving(endpoint, tools=[stock, price]) as server:
        said = server.refused(400, RUNS, question="x", tools=["stok"])
        assert said["param"] == "tools"
        assert "stock, price" in said["message"]
        assert ask(server, tools=["price"], evidence_gate=False)["tools"] == ["price"]
        assert "stock" not in endpoint.prompts[0].text


def test_tools_that_change_something_are_not_offered_unless_the_server_was_told_to() -> None:
    done: list[str] = []

    @tool(effects=True)
    def pay(bill: str) -> str:
        """Pay a bill."""
        done.append(bill)
        return "paid"

    @tool(approve=True)
    def shout(text: str) -> str:
        """Say something aloud."""
        raise AssertionError

    pays = WRITE(ToolCall("I pay it now.", "pay", {"bill": "rent"}))
    shouts = WRITE(ToolCall("I say it now.", "shout", {"text": "rent"}))
    with serving(ScriptedEndpoint([pays, shouts, FINISH]), tools=[pay, shout]) as server:
        offered = {each["name"]: each["refused"] for each in get(server, "/choices")["tools"]}
        assert "--allow-effects" in offered["pay"]
        assert "approval" in offered["shout"]
        for name in ("pay", "shout"):
            assert server.refused(403, RUNS, question="x", tools=[name])["code"] == "tool_refused"
        run = ask(server, evidence_gate=False)
        assert (run["tools"], done) == ([], [])
        assert all(not each["observation"]["executed"] for each in run["steps"] if "observation" in each)
    with serving(ScriptedEndpoint([pays, FINISH]), tools=[pay, shout], allow_effects=True) as server:
        assert server.refused(403, RUNS, question="x", tools=["shout"])["code"] == "tool_refused"
        assert ask(server)["tools"] == ["pay"]
        assert done == ["rent"]


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (400, {"question": "   "}),
        (400, {"question": ""}),
        (400, {}),
        (400, {"question": "x", "engine": "magic"}),
        (400, {"question": "x", "protocol": "magic"}),
        (400, {"question": "x", "tool_choice": "magic"}),
        (400, {"question": "x", "max_steps": 0}),
        (400, {"question": "x", "trace": "/etc/passwd"}),
        (400, {"question": "x", "cite": True, "tools": []}),
        (400, {"question": "x", "answer_schema": {"type": 7}}),
        (400, {"question": "x", "answer_schema": {"not": {"$ref": "http://127.0.0.1:9/x"}}}),
        (404, {"question": "x", "model": "gpt-5"}),
    ],
)
def test_what_cannot_be_asked_for_is_said(stock: Tool, status: int, fields: Json) -> None:
    with serving(ScriptedEndpoint([]), tools=[stock]) as server:
        assert server.refused(status, RUNS, **fields)["message"]
        assert server.idle
        assert get(server, "")["data"] == []


def test_held_and_free_runs_share_one_model(tiny: LlamaEndpoint, stock: Tool) -> None:
    few: Json = {"max_tokens": 120, "max_steps": 2}
    with serving(tiny, tools=[stock]) as server:
        assert "free" in get(server, "/choices")["engines"]
        held = ask(server, tool_choice="required", **few)
        free = ask(server, engine="free", **few)
        assert (held["enforced"], free["enforced"]) == ("lark", "")
        assert (held["level"], free["level"]) == ("enforced in process", "checked only")
        assert held["usage"]["forced"] > 0
        assert free["usage"]["forced"] == 0
        assert "localreact_runs_total" in server.client.get("/metrics").text
        assert ask(server, engine="gbnf", **few)["enforced"] == "gbnf"


def test_an_answer_fits_its_schema(tiny: LlamaEndpoint, stock: Tool) -> None:
    schema = {"type": "object", "properties": {"left": {"enum": [0, 3]}}, "required": ["left"]}
    with serving(tiny, tools=[stock]) as server:
        run = ask(server, answer_schema={**schema, "additionalProperties": False}, tools=[], max_tokens=2000)
        assert run["value"] in ({"left": 0}, {"left": 3})
        assert json.loads(run["answer"]) == run["value"]


def test_the_model_may_still_be_loading(stock: Tool) -> None:
    from localreact.serve.settings import Settings
    from localreact.serve.state import State

    with running(State(Settings(tools=[stock]))) as server:
        assert server.refused(503, RUNS, question="x")["code"] == "loading"


def test_the_page_of_a_run_is_sealed(stock: Tool) -> None:
    hostile = "</pre><script>alert(1)</script>"
    with serving(
        ScriptedEndpoint([CALL, WRITE(Finish("So it is now.", answer=hostile))]), tools=[stock]
    ) as server:
        run = ask(server, hostile)
        answer = server.client.get(f"{RUNS}/{run['id']}/page")
        assert answer.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "<script" not in answer.text
        assert "alert(1)" in answer.text

"""Ollama's `/api/chat` over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.scripted import ScriptedEndpoint
from localreact.errors import EndpointError
from localreact.serve.ollama import VERSION
from tests.serve.server import Json, Server, serving, tool
from tests.serve.streams import ARGUMENTS, CALL, FINISH, failing, lines

PATH = "/api/chat"


@pytest.fixture(scope="module")
def server(tiny: LlamaEndpoint) -> Iterator[Server]:
    with serving(tiny, max_tokens=400) as server:
        yield server


def body(content: str = "How many?", **fields: Any) -> Json:
    return {"model": "", "messages": [{"role": "user", "content": content}], **fields}


def say(server: Server, content: str = "How many?", **fields: Any) -> Json:
    answer = server.post(PATH, body(content, stream=False, **fields))
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def test_a_call_has_its_arguments_as_an_object() -> None:
    with serving(ScriptedEndpoint([CALL])) as server:
        answer = say(server, tools=[tool()])
    (call,) = answer["message"]["tool_calls"]
    assert call["function"] == {"name": "stock", "arguments": ARGUMENTS}
    assert answer["message"]["content"] == ""
    assert "thinking" not in answer["message"]
    assert (answer["done"], answer["done_reason"]) == (True, "stop")


def test_a_stream_is_what_is_meant_where_nothing_is_said() -> None:
    with serving(ScriptedEndpoint([CALL, "Hello there."])) as server:
        call = lines(server, PATH, body(tools=[tool()], think=True))
        text = lines(server, PATH, body())
    thought, called, last = call
    assert thought["message"] == {"role": "assistant", "content": "", "thinking": "I look it up."}
    assert called["message"]["tool_calls"][0]["function"] == {"name": "stock", "arguments": ARGUMENTS}
    assert [each["done"] for each in call] == [False, False, True]
    assert last["message"] == {"role": "assistant", "content": ""}
    assert "".join(each["message"]["content"] for each in text) == "Hello there."
    assert [each["done"] for each in text] == [False] * (len(text) - 1) + [True]


def test_the_last_line_counts_tokens_and_nanoseconds(server: Server) -> None:
    last = lines(server, PATH, body(options={"num_predict": 20, "temperature": 1, "seed": 5}))[-1]
    assert last["done_reason"] in ("stop", "length")
    assert last["prompt_eval_count"] > 0
    assert 0 < last["eval_count"] <= 20
    assert last["total_duration"] >= last["eval_duration"] > 0
    assert last["total_duration"] < 60e9


def test_options_choose_the_tokens(server: Server) -> None:
    options = {"temperature": 1.0, "seed": 5, "num_predict": 30, "num_ctx": 2048, "stop": []}
    first, same, other = (
        say(server, options={**options, "seed": seed})["message"]["content"] for seed in (5, 5, 6)
    )
    assert first == same != other
    cut = say(server, options={**options, "stop": [first[3:5]]})
    assert cut["message"]["content"] == first[: first.index(first[3:5])]
    assert say(server, options={**options, "num_predict": 3})["done_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_is_made(server: Server, stream: bool) -> None:
    tools = [tool("stock"), tool("price")]
    for seed in range(4):
        fields: Json = {
            "tools": tools,
            "tool_choice": "required",
            "options": {"temperature": 1.0, "seed": seed},
        }
        answers = lines(server, PATH, body(**fields)) if stream else [say(server, **fields)]
        calls = [call for each in answers for call in each["message"].get("tool_calls", [])]
        assert len(calls) == 1
        assert calls[0]["function"]["name"] in ("stock", "price")


def test_half_a_call_is_none(server: Server) -> None:
    fields: Json = {"tools": [tool()], "tool_choice": "required", "options": {"num_predict": 25}}
    for answers in (lines(server, PATH, body(**fields)), [say(server, **fields)]):
        assert answers[-1]["done_reason"] == "length"
        assert not any("tool_calls" in each["message"] for each in answers)


def test_a_format_holds_the_answer(server: Server) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    assert json.loads(say(server, format=schema)["message"]["content"])["n"] in (1, 2)
    found = say(server, format="json", options={"num_predict": 600})
    assert found["done_reason"] == "length" or isinstance(json.loads(found["message"]["content"]), dict)


@pytest.mark.parametrize("named", ["ids", "names", "neither"])
def test_results_find_their_calls(named: str) -> None:
    calls: list[Json] = [
        {"function": {"name": "stock", "arguments": {"sku": "A"}}},
        {"function": {"name": "price", "arguments": {"sku": "A"}}},
    ]
    results: list[Json] = [{"role": "tool", "content": "1 left"}, {"role": "tool", "content": "2 euros"}]
    for call, result, name in zip(calls, results, ("stock", "price"), strict=True):
        if named == "ids":
            call["id"] = result["tool_call_id"] = f"id-{name}"
        elif named == "names":
            result["tool_name"] = name
    if named != "neither":
        results.reverse()
    messages = [
        {"role": "user", "content": "Both?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *results,
    ]
    endpoint = ScriptedEndpoint([FINISH])
    with serving(endpoint) as server:
        answer = say(server, tools=[tool("stock"), tool("price")], messages=messages)
    assert answer["message"]["content"] == "There are 3."
    text = endpoint.prompts[0].text
    begun = text.index("Both?")
    places = [text.index(each, begun) for each in ("stock", "1 left", "price", "2 euros")]
    assert places == sorted(places)


def test_tags_and_version_say_what_there_is(server: Server) -> None:
    (model,) = server.client.get("/api/tags").json()["models"]
    assert say(server, model=f"{model['model']}:latest", options={"num_predict": 1})["done"]
    assert server.client.get("/api/version").json() == {"version": VERSION}
    assert [int(each) for each in VERSION.split(".")] >= [0, 6, 4]  # for VS Code's Copilot


def test_a_model_is_shown_as_copilot_looks_at_it(server: Server) -> None:
    (listed,) = server.client.get("/api/tags").json()["models"]
    for said in ({"model": listed["name"]}, {"name": f"{listed['name']}:latest"}, {"model": "default"}):
        shown = server.post("/api/show", said).json()
        about = shown["model_info"]
        assert {"completion", "tools"} <= set(shown["capabilities"])
        assert about[f"{about['general.architecture']}.context_length"] == server.state.desk.endpoint.n_ctx
        assert shown["details"] == listed["details"]
    assert "gpt-5" in failing(server, "/api/show", 404, {"model": "gpt-5"})["error"]
    (loaded,) = server.client.get("/api/ps").json()["models"]
    assert (loaded["model"], loaded["details"]["format"]) == (listed["model"], "gguf")
    with serving(ScriptedEndpoint([])) as other:
        assert other.post("/api/show", {"model": "scripted"}).json()["model_info"]["unknown.context_length"]


def test_what_is_not_there_of_ollama_says_what_is(server: Server) -> None:
    assert "/api/chat" in failing(server, "/api/generate", 501, {"model": "x", "prompt": "y"})["error"]


def test_a_failure_in_a_stream_is_its_last_line() -> None:
    with serving(ScriptedEndpoint([EndpointError("it broke")])) as server:
        assert lines(server, PATH, body()) == [{"error": "it broke"}]


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"model": "llama3"}, 404, "llama3"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages/0/role"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, 400, "images"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages/0"),
        ({"tools": [tool(), tool()]}, 400, "'stock'"),
        ({"tools": [tool(sku={"type": "strong"})]}, 400, "tool 'stock'"),
        ({"format": "yaml"}, 400, "format"),
        ({"options": {"mirostat": 2}}, 400, "options/mirostat"),
        ({"options": {"temperature": -1}}, 400, "options/temperature"),
        ({"nonsense": 1}, 400, "nonsense"),
    ],
)
def test_errors_have_the_shape_of_the_dialect(server: Server, fields: Json, status: int, said: str) -> None:
    answer = failing(server, PATH, status, body(**fields))
    assert list(answer) == ["error"]
    assert said in answer["error"]

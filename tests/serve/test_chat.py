"""`/v1/chat/completions` over HTTP."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from localreact.endpoints.scripted import ScriptedEndpoint
from localreact.errors import EndpointError
from localreact.serve.chat_wire import ChatRequest, to_ask
from localreact.serve.completions import CompletionRequest, to_asks
from tests.serve.server import Json, Server, asked, delta_texts, serving, streamed_calls, tool

YES_OR_NO = 'root ::= "yes" | "no"'
DRAWN: Json = {"temperature": 1.0, "seed": 7, "max_tokens": 600}
CALL = json.dumps(
    {"thought": "I look it up.", "type": "tool_call", "tool": "stock", "arguments": {"sku": "Ä\n7"}},
    ensure_ascii=False,
)
FINISH = json.dumps({"thought": "I know that already.", "type": "finish", "answer": "There are 3."})


def test_a_call_is_one_tool_call_and_no_content() -> None:
    with serving(ScriptedEndpoint([CALL])) as server:
        answer = server.chat(tools=[tool()])
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["role"], message["content"]) == ("assistant", None)
    assert message["reasoning_content"] == "I look it up."
    (call,) = message["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["type"] == "function"
    assert call["function"] == {"name": "stock", "arguments": '{"sku": "Ä\\n7"}'}
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == -(-len(CALL) // 4)


def test_an_answer_is_content_and_its_thought_is_reasoning() -> None:
    with serving(ScriptedEndpoint([FINISH])) as server:
        choice = server.chat(tools=[tool()])["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {
        "role": "assistant",
        "content": "There are 3.",
        "reasoning_content": "I know that already.",
    }


def test_a_stream_says_the_name_once_and_the_reason_last() -> None:
    with serving(ScriptedEndpoint([CALL])) as server:
        chunks = server.chunks(tools=[tool()], stream_options={"include_usage": True})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    reasons = [each["finish_reason"] for chunk in chunks for each in chunk["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]
    (call,) = streamed_calls(chunks)
    assert (call["name"], call["arguments"]) == ("stock", '{"sku": "Ä\\n7"}')
    assert delta_texts(chunks, "content") == ""
    assert delta_texts(chunks, "reasoning_content") == "I look it up."
    assert [chunk["usage"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-1]["choices"] == []
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_without_the_option_no_chunk_has_usage() -> None:
    with serving(ScriptedEndpoint(["Hi."])) as server:
        chunks = server.chunks()
    assert not any("usage" in chunk for chunk in chunks)
    assert delta_texts(chunks, "content") == "Hi."


def test_a_failure_in_a_stream_is_its_last_event() -> None:
    with serving(ScriptedEndpoint([EndpointError("the model broke")])) as server:
        *_, last = server.chunks()
    assert last["error"]["message"] == "the model broke"
    assert last["error"]["type"] == "endpoint_error"


def test_an_endpoint_that_fails_is_a_502() -> None:
    with serving(ScriptedEndpoint([EndpointError("the model broke"), "prose"])) as server:
        assert server.refused(502, **asked("x"))["message"] == "the model broke"
        assert server.refused(502, **asked("x", tools=[tool()]))["code"] == "no_turn"


def test_replies_draw_alike_with_a_seed_and_have_ids_of_their_own(served: Server) -> None:
    fields: Json = {"tools": [tool()], "tool_choice": "required", **DRAWN}
    server = served
    server.chat(**fields)  # from here on, the prompt is in memory
    first, second = server.chat(**fields), server.chat(**fields)
    messages = [each["choices"][0]["message"] for each in (first, second)]
    calls = [each["tool_calls"][0] for each in messages]
    assert calls[0]["function"] == calls[1]["function"]
    assert calls[0]["id"] != calls[1]["id"]
    assert first["id"] != second["id"]
    (streamed,) = streamed_calls(server.chunks(**fields))
    assert {"name": streamed["name"], "arguments": streamed["arguments"]} == calls[0]["function"]


def test_n_replies_are_choices_of_their_own(served: Server) -> None:
    answer = served.chat(n=3, **DRAWN)
    assert [each["index"] for each in answer["choices"]] == [0, 1, 2]
    assert len({each["message"]["content"] for each in answer["choices"]}) == 3
    chunks = served.chunks(n=3, tools=[tool()], tool_choice="required", **DRAWN)
    calls = [streamed_calls(chunks, choice) for choice in range(3)]
    assert [len(each) for each in calls] == [1, 1, 1]
    assert len({each[0]["arguments"] for each in calls}) == 3


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_tokens_that_run_out_are_said_to(served: Server, name: str) -> None:
    most: Json = {name: 9}
    answer = served.chat(tools=[tool()], tool_choice="required", **most)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]
    assert answer["usage"]["completion_tokens"] <= 9


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_fits_its_schema(served: Server, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"b": {"type": "boolean"}, "n": {"enum": [1, 2]}},
        "required": ["n", "b"],
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    fields: Json = {"response_format": wanted, **DRAWN}
    content = (
        delta_texts(served.chunks(**fields), "content") if stream else served.message(**fields)["content"]
    )
    value = json.loads(content)
    assert set(value) == {"b", "n"}
    assert isinstance(value["b"], bool)
    assert value["n"] in (1, 2)


def test_a_json_object_is_one(served: Server) -> None:
    choice = served.chat(response_format={"type": "json_object"}, **{**DRAWN, "max_tokens": 2000})["choices"][
        0
    ]
    assert choice["finish_reason"] == "length" or isinstance(json.loads(choice["message"]["content"]), dict)
    assert (
        served.chat(response_format={"type": "text"}, max_tokens=5)["choices"][0]["message"]["role"]
        == "assistant"
    )


def test_a_schema_for_a_text_gives_json_too(served: Server) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
    assert served.message(response_format=wanted, **DRAWN)["content"] in ('"yes"', '"no"')


@pytest.mark.parametrize(
    "content", [None, "", [], [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]]
)
def test_content_may_be_missing_or_in_parts(content: Any) -> None:
    endpoint = ScriptedEndpoint(["Hi."])
    with serving(endpoint) as server:
        body = {
            "messages": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": content}]
        }
        assert server.post("/v1/chat/completions", body).status_code == 200
    text = endpoint.prompts[0].text
    assert "None" not in text
    assert text.startswith("Be kind.")
    assert ("a\nb" in text) == (bool(content))


def test_a_conversation_with_results_goes_on(served: Server) -> None:
    first = served.message(tools=[tool()], tool_choice="required", **DRAWN)
    result = {
        "role": "tool",
        "tool_call_id": first["tool_calls"][0]["id"],
        "content": [{"type": "text", "text": "3"}],
    }
    messages = [{"role": "user", "content": "Hello"}, first, result]
    answer = served.post("/v1/chat/completions", {"messages": messages, "tools": [tool()], **DRAWN})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


@pytest.mark.parametrize("name", ["none_yet", None])
def test_a_tool_without_parameters_is_called_with_none(served: Server, name: str | None) -> None:
    function: Json = {"name": "now", "parameters": {"type": "object", "properties": {}}}
    if name is None:
        del function["parameters"]
    message = served.message(
        tools=[{"type": "function", "function": function}], tool_choice="required", **DRAWN
    )
    assert message["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


def test_an_own_grammar_holds_the_content(served: Server) -> None:
    message = served.message(grammar={"language": "lark", "text": 'start: "yes" | "no"'}, **DRAWN)
    assert message["content"] in ("yes", "no")
    served.refused(400, **asked("x", grammar={"language": "lark", "text": "start: ("}))
    served.refused(400, **asked("x", grammar={"language": "lark", "text": 'start: "a"'}, tools=[tool()]))
    results = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "stock", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "3"},
    ]
    served.refused(400, messages=results, grammar='start: "a"')


@pytest.mark.parametrize("engine", ["llguidance", "gbnf"])
@pytest.mark.parametrize("said", [YES_OR_NO, {"language": "gbnf", "text": YES_OR_NO}])
def test_a_grammar_may_be_a_text_and_is_read_as_what_it_is(served: Server, engine: str, said: Any) -> None:
    for seed in range(3):
        message = served.message(grammar=said, engine=engine, temperature=1.0, seed=seed)
        assert message["content"] in ("yes", "no")


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("free", {"language": "lark", "text": 'start: "yes" | "no"'}),
        ("free", YES_OR_NO),
        ("gbnf", 'start: "yes" | "no"'),
        ("gbnf", {"language": "lark", "text": 'start: "yes" | "no"'}),
        ("llguidance", {"language": "regex", "text": "yes|no"}),
        ("llguidance", {"language": "klingon", "text": "yes|no"}),
    ],
)
def test_a_grammar_that_nothing_enforces_is_refused(served: Server, engine: str, said: Any) -> None:
    assert served.refused(400, **asked("x", engine=engine, grammar=said))["code"] == "not_enforceable"


@pytest.mark.parametrize("engine", ["gbnf", "llguidance"])
def test_an_engine_can_be_chosen(served: Server, engine: str) -> None:
    message = served.message(tools=[tool()], tool_choice="required", engine=engine, **DRAWN)
    assert message["tool_calls"][0]["function"]["name"] == "stock"
    served.refused(400, **asked("x", engine="none_such"))


SHORT: Json = {"logprobs": True, "temperature": 1.0, "seed": 7, "max_tokens": 12}


def logprobs(choice: Json) -> list[Json]:
    found: list[Json] = (choice["logprobs"] or {"content": []})["content"]
    return found


def same_scores(some: list[Json], others: list[Json]) -> bool:
    """The last bits of logits depend on what is evaluated beside them."""
    assert [each["bytes"] for each in some] == [each["bytes"] for each in others]
    return [each["logprob"] for each in some] == pytest.approx([e["logprob"] for e in others], abs=1e-3)


def test_tokens_come_with_their_log_probabilities(served: Server) -> None:
    (choice,) = served.chat(max_tokens=12, logprobs=True, top_logprobs=3, temperature=0)["choices"]
    scored = logprobs(choice)
    written = b"".join(bytes(each["bytes"]) for each in scored)
    assert written.decode("utf-8", "replace") == choice["message"]["content"]
    for each in scored:
        likeliest = [top["logprob"] for top in each["top_logprobs"]]
        assert len(likeliest) == 3
        assert likeliest == sorted(likeliest, reverse=True)
        assert each["logprob"] == likeliest[0]  # greedy
        assert sum(map(math.exp, likeliest)) < 1
    assert not logprobs(served.chat(max_tokens=4)["choices"][0])


def test_streamed_tokens_add_up_to_those_of_the_whole_reply(served: Server) -> None:
    fields: Json = {**SHORT, "top_logprobs": 1, "n": 2}
    whole = served.chat(**fields)["choices"]
    streamed: dict[int, list[Json]] = {0: [], 1: []}
    for chunk in served.chunks(**fields):
        for choice in chunk["choices"]:
            streamed[choice["index"]] += logprobs(choice)
    for each in whole:
        assert same_scores(streamed[each["index"]], logprobs(each))


def test_no_token_after_a_stop_string_is_scored(served: Server) -> None:
    (choice,) = served.chat(**SHORT)["choices"]
    text = choice["message"]["content"]
    (cut,) = served.chat(**SHORT, stop=[text[4:6]])["choices"]
    assert cut["message"]["content"] == text[: text.index(text[4:6])]
    assert same_scores(logprobs(cut), logprobs(choice)[: len(logprobs(cut))])
    before_last = b"".join(bytes(each["bytes"]) for each in logprobs(cut)[:-1])
    assert len(before_last.decode("utf-8", "replace")) < len(cut["message"]["content"])


def test_an_endpoint_without_log_probabilities_refuses() -> None:
    with serving(ScriptedEndpoint(["Hi."])) as server:
        assert server.refused(400, **asked("x", logprobs=True))["param"] == "logprobs"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True, "tools": [tool()]}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"functions": []}, "functions"),
        ({"audio": {}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_p": 0}, "top_p"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "zz"}, "tool_choice"),
        ({"tools": [tool(), tool()]}, "tools/1/name"),
        ({"tools": [tool("a b")]}, "tools/0/name"),
        ({"tools": [tool("finish")]}, "tools/0/name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools/0/type"),
        ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "zz"}}}, "tool_choice"),
        ({"tools": [tool("x", a={"type": 5})]}, "tools/0/parameters/properties/a/type"),
        ({"response_format": {"type": "json_schema"}}, "response_format/json_schema/schema"),
        ({"protocol": "nope"}, "protocol"),
        ({"reasoning_tokens": -1}, "reasoning_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages/0/role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages/0/tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages/0/content/0"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_name(served: Server, fields: Json, param: str) -> None:
    error = served.refused(400, **{**asked("x"), **fields})
    assert error["type"] == "invalid_request_error"
    assert str(error["param"]).startswith(param)


def test_a_broken_schema_is_refused_naming_tool_and_place(served: Server) -> None:
    bad = tool("bad", a={"type": "string", "pattern": "^hi(\\!$"})
    error = served.refused(400, **asked("x", tools=[tool(), bad]))
    assert "'bad'" in error["message"]
    assert "/properties/a" in error["message"]
    assert error["param"] == "tools/1/parameters/properties/a/pattern"


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "me", "metadata": {"a": "b"}, "store": False, "parallel_tool_calls": True},
        {
            "frequency_penalty": 0,
            "presence_penalty": 0.0,
            "logit_bias": {},
            "logprobs": False,
            "top_logprobs": None,
        },
        {"temperature": None, "top_p": None, "n": None, "stop": None, "tools": None, "tool_choice": None},
        {"model": "default", "tools": [], "tool_choice": "none"},
    ],
)
def test_what_changes_nothing_is_taken(served: Server, fields: Json) -> None:
    served.chat(max_tokens=4, **fields)


def test_the_model_has_to_be_the_one_that_is_served(served: Server) -> None:
    error = served.refused(404, **asked("x", model="gpt-4o"))
    assert error["code"] == "model_not_found"
    served.chat(model=served.state.desk.model_names()[0], max_tokens=4)


def test_a_prompt_beyond_the_context_is_the_clients_fault(served: Server) -> None:
    assert served.refused(400, **asked("word " * 5000))["code"] == "context_length_exceeded"


def test_more_than_the_caps_allow_is_refused(served: Server) -> None:
    assert served.refused(422, **asked("x", tools=[tool(f"t{n}") for n in range(200)]))["param"] == "tools"
    deep: Json = {"type": "string"}
    for _ in range(40):
        deep = {"type": "array", "items": deep}
    assert served.refused(422, **asked("x", tools=[tool("x", a=deep)]))["param"] == "tools/0/parameters"
    assert served.refused(422, **asked("x", stop=["s"] * 99))["param"] == "stop"
    assert served.refused(422, **asked("x", n=99))["param"] == "n"


def test_an_event_is_one_line_for_whoever_splits_at_all_of_unicodes_line_ends() -> None:
    said = "a\u2028b\u2029c\x85d"
    with serving(ScriptedEndpoint([said])) as server:
        assert delta_texts(server.chunks(), "content") == said  # its client splits so


def test_what_local_clients_send_as_a_matter_of_course_is_taken() -> None:
    settings: Json = {"max_tokens": -1, "max_completion_tokens": -1, "seed": -1}
    asks = [to_ask(ChatRequest.model_validate(asked("x", **settings))) for _ in range(2)]
    assert [each.max_tokens for each in asks] == [None, None]
    assert asks[0].sampling.seed != asks[1].sampling.seed
    (raw,) = to_asks(CompletionRequest.model_validate({"prompt": "x", "max_tokens": -1, "seed": -1}))
    assert raw.max_tokens is None
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    wanted: Json = {"response_format": {"type": "json_object", "schema": schema}}
    assert to_ask(ChatRequest.model_validate(asked("x", **wanted))).answer == schema
    for said, tokens in (({"enable_thinking": False}, 0), ({"enable_thinking": True}, 7), ({"x": [1]}, 7)):
        fields: Json = {"chat_template_kwargs": said, "reasoning_tokens": 7}
        assert to_ask(ChatRequest.model_validate(asked("x", **fields))).reasoning_tokens == tokens


@pytest.mark.parametrize("fields", [{"max_tokens": -2}, {"max_tokens": 0}, {"max_completion_tokens": -7}])
def test_fewer_tokens_than_one_are_refused(served: Server, fields: Json) -> None:
    assert served.refused(400, **asked("x", **fields))["param"] in fields

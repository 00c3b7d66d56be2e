"""`/v1/completions` over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from localreact import Agent
from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.scripted import ScriptedEndpoint
from tests.fakes import wait_until
from tests.serve.server import Json, Server, asked, serving

DRAWN = {"temperature": 1.0, "seed": 3}
WORD = {"type": "object", "properties": {"word": {"type": "string", "maxLength": 5}}, "required": ["word"]}


@pytest.fixture(scope="module")
def server(tiny: LlamaEndpoint) -> Iterator[Server]:
    with serving(tiny, max_tokens=100, queue=100) as server:
        yield server


def complete(server: Server, prompt: Any = "Once", **fields: Any) -> Json:
    answer = server.post("/v1/completions", {"prompt": prompt, **fields})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def text(server: Server, **fields: Any) -> str:
    (choice,) = complete(server, **fields)["choices"]
    assert choice["finish_reason"] == "stop"
    said: str = choice["text"]
    return said


def chunks(server: Server, **body: Any) -> list[Json]:
    with server.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        data = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert data.pop() == "[DONE]"
    return [json.loads(each) for each in data]


def test_tokens_come_with_their_log_probabilities(server: Server) -> None:
    (choice,) = complete(server, max_tokens=10, logprobs=2, **DRAWN)["choices"]
    scores = choice["logprobs"]
    assert len({len(each) for each in scores.values()}) == 1
    assert all(logprob <= 0 for logprob in scores["token_logprobs"])
    assert scores["text_offset"][0] == 0
    assert scores["text_offset"] == sorted(scores["text_offset"])
    assert scores["text_offset"][-1] < len(choice["text"])
    streamed = [
        each["choices"][0]["logprobs"]
        for each in chunks(server, prompt="Once", max_tokens=10, logprobs=2, **DRAWN)
    ]
    assert [token for each in streamed if each for token in each["tokens"]] == scores["tokens"]


def test_a_token_that_the_grammar_forces_is_certain(server: Server) -> None:
    (choice,) = complete(server, grammar='start: "hello " /[0-9]/', logprobs=0)["choices"]
    assert re.fullmatch("hello [0-9]", choice["text"])
    assert 0.0 in choice["logprobs"]["token_logprobs"]


def test_the_text_goes_on_with_the_prompt_as_it_is() -> None:
    endpoint = ScriptedEndpoint([" upon a time"])
    with serving(endpoint) as server:
        answer = complete(server, "Once <|im_start|>")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": " upon a time", "logprobs": None, "finish_reason": "stop"}
    ]
    (prompt,) = endpoint.prompts
    assert [(each.text, each.trusted) for each in prompt.segments] == [("Once <|im_start|>", False)]


def test_it_ends_at_the_tokens_asked_for_and_before_a_stop() -> None:
    with serving(ScriptedEndpoint(["one two three", "one two three"])) as server:
        cut = complete(server, max_tokens=2)["choices"][0]
        stopped = complete(server, stop=["three", " tw"])["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == ("one two ", "length")
    assert (stopped["text"], stopped["finish_reason"]) == ("one", "stop")


def test_several_prompts_have_n_choices_each_in_their_order(server: Server) -> None:
    answer = complete(server, ["a", "bb", "ccc"], n=2, max_tokens=5, **DRAWN)
    assert [each["index"] for each in answer["choices"]] == list(range(6))
    single = [complete(server, each, max_tokens=5, **DRAWN) for each in ("a", "bb", "ccc")]
    assert [each["text"] for each in answer["choices"][::2]] == [
        each["choices"][0]["text"] for each in single
    ]
    usage = answer["usage"]
    assert usage["prompt_tokens"] == sum(each["usage"]["prompt_tokens"] for each in single)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_stream_adds_up_to_the_answer(server: Server) -> None:
    body = {"prompt": ["a", "bb"], "max_tokens": 20, **DRAWN}
    whole = complete(server, body["prompt"], max_tokens=20, **DRAWN)
    found = chunks(server, **body, stream_options={"include_usage": True})
    for choice in whole["choices"]:
        parts = [each for chunk in found for each in chunk["choices"] if each["index"] == choice["index"]]
        assert "".join(each["text"] for each in parts) == choice["text"]
        assert [each["finish_reason"] for each in parts] == [None] * (len(parts) - 1) + [
            choice["finish_reason"]
        ]
    assert [chunk["usage"] is None for chunk in found] == [True] * (len(found) - 1) + [False]
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


@pytest.mark.parametrize("engine", [None, "gbnf"])
@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ({"json_schema": WORD}, r'\{"word": ".{0,20}"\}'),
        ({"structured_outputs": {"json": json.dumps(WORD)}}, r'\{"word": ".{0,20}"\}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": WORD}}},
            r'\{"word": ".{0,20}"\}',
        ),
        ({"structured_outputs": {"regex": r"[a-c]{3}/\d"}}, r"[abc]{3}/[0-9]"),
        ({"structured_outputs": {"choice": ['yes "it" is', "no\n"]}}, 'yes "it" is|no\n'),
        (
            {"structured_outputs": {"grammar": 'root ::= "x" [0-4]{2} item\nitem ::= "." | "!"'}},
            r"x[0-4]{2}[.!]",
        ),
        ({"grammar": 'root ::= "x" [0-4]'}, r"x[0-4]"),
        ({"grammar": r'root ::= "\\U" [\U0001F600-\U0010FFFF]{2}'}, r"\\U[\U0001F600-\U0010FFFF]{2}"),
    ],
)
def test_the_text_is_held_to_what_was_asked_for(
    server: Server, engine: str | None, held: Json, expected: str
) -> None:
    for seed in range(5):
        said = text(server, **held, engine=engine, temperature=1.0, seed=seed, max_tokens=300)
        assert re.fullmatch(expected, said, re.S), said
        if "word" in expected:
            assert len(json.loads(said)["word"]) <= 5


def test_an_agent_of_ours_is_held_over_a_server_of_ours(server: Server) -> None:
    """Every turn by the grammar that the agent sends."""

    def stock(sku: str) -> int:
        """How many of an article are left."""
        return 3

    url = str(server.client.base_url).rstrip("/")
    with Agent(f"openai:{url}/v1", [stock], max_steps=2, max_tokens=600) as agent:
        assert agent.level == "enforced by the server's grammar"
        run = agent.run("How many?")
    assert {step.problem for step in run.steps} <= {None, "length"}
    assert run.status != "endpoint_error"


def test_a_lark_grammar_is_taken_where_llguidance_enforces(server: Server) -> None:
    assert re.fullmatch("(ab|c){3}", text(server, grammar='start: item{3}\nitem: "ab" | "c"', **DRAWN))
    error = server.refused(400, "/v1/completions", prompt="a", grammar='start: "a"', engine="gbnf")
    assert error["code"] == "not_enforceable"


def test_what_a_grammar_does_not_hold_of_a_schema_is_told(server: Server) -> None:
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2, "uniqueItems": True}
    statuses = set()
    for seed in range(12):
        body = {"prompt": "Once", "json_schema": schema, "temperature": 1.0, "seed": seed}
        answer = server.post("/v1/completions", body)
        statuses.add(answer.status_code)
        if answer.status_code == 200:
            assert "uniqueItems" in answer.json()["warnings"][0]
            values = json.loads(answer.json()["choices"][0]["text"])
            assert len(set(values)) == len(values)
        else:
            assert answer.json()["error"]["code"] == "no_turn"
    assert statuses == {200, 502}


def test_what_is_to_be_strict_is_refused_where_the_grammar_does_not_hold_it(server: Server) -> None:
    schema = {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3, "uniqueItems": True}
    wanted = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema, "strict": True}}
    error = server.refused(400, "/v1/completions", prompt="a", response_format=wanted)
    assert (error["code"], error["param"]) == ("not_enforceable", "response_format")
    assert "uniqueItems" in error["message"]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"prompt": [1, 2, 3]}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": ""}, 400, "prompt"),
        ({"echo": True}, 400, "echo"),
        ({"logprobs": 21}, 400, "logprobs"),
        ({"best_of": 3}, 400, "best_of"),
        ({"suffix": "."}, 400, "suffix"),
        ({"model": "gpt-5"}, 404, "model"),
        ({"nonsense": 1}, 400, "nonsense"),
        ({"engine": "magic"}, 400, "engine"),
        ({"grammar": "start: (", "max_tokens": 5}, 400, None),
        ({"grammar": "root ::= (", "max_tokens": 5}, 400, "grammar"),
        ({"json_schema": {"type": "strong"}}, 400, "json_schema/type"),
        ({"json_schema": "{"}, 400, "json_schema"),
        ({"json_schema": {"$ref": "#"}}, 400, None),
        ({"json_schema": {"not": {}}}, 400, "json_schema"),
        ({"structured_outputs": {"regex": r"(a)\1"}}, 400, "structured_outputs/regex"),
        ({"structured_outputs": {"regex": "a"}, "grammar": "b"}, 400, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, 400, "structured_outputs/choice"),
        ({"structured_outputs": {"choice": ["x" * 100_000]}}, 422, "structured_outputs/choice"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    server: Server, fields: Json, status: int, param: str | None
) -> None:
    error = server.refused(status, "/v1/completions", **{"prompt": "a", **fields})
    assert error["message"]
    if param is not None:
        assert error["param"] == param
    wait_until(lambda: server.idle)


@pytest.mark.parametrize(
    "text",
    [
        "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(3000)) + '\nr3000: "a"',
        "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000,
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(3000)) + '\nr3000 ::= "a"',
    ],
    ids=["lark", "nested", "gbnf"],
)
def test_a_grammar_that_would_take_the_process_down_is_refused(server: Server, text: str) -> None:
    """Compilers recurse: 3,000 rules in a chain are a segmentation fault."""
    assert server.refused(422, "/v1/completions", prompt="a", grammar=text)["param"] == "grammar"
    language = "gbnf" if "::=" in text else "lark"
    chat = asked("?", grammar={"language": language, "text": text})
    assert server.refused(422, **chat)["param"] == "grammar"


def test_an_endpoint_that_enforces_nothing_says_so() -> None:
    with serving(ScriptedEndpoint([])) as server:
        error = server.refused(400, "/v1/completions", prompt="a", structured_outputs={"choice": ["a"]})
    assert error["code"] == "not_enforceable"


def test_more_prompts_than_there_are_places_are_refused_for_good(tiny: LlamaEndpoint) -> None:
    with serving(tiny, parallel=1, queue=2, max_tokens=5) as server:
        error = server.refused(422, "/v1/completions", prompt=["a", "b"], n=2)
        assert error["param"] == "prompt"
        assert len(complete(server, ["a", "b", "c"])["choices"]) == 3


def test_one_prompt_that_does_not_fit_takes_the_others_with_it(server: Server) -> None:
    error = server.refused(400, "/v1/completions", prompt=["a", "b" * 20_000])
    assert error["code"] == "context_length_exceeded"
    wait_until(lambda: server.idle)

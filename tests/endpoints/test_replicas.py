from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from localreact import Agent
from localreact.endpoints.address import parse_addresses
from localreact.endpoints.http import Patience
from localreact.endpoints.replicas import ReplicaEndpoint
from localreact.endpoints.resolve import open_endpoint, open_server
from localreact.errors import EndpointError, UsageError
from localreact.tools.decorator import Tool
from localreact.types import Limits, Prompt, Sampling, Segment
from tests.fakes import GRAMMARS, Fake, Fault, serving

CALL = (
    '{"thought": "I should look it up.", "type": "tool_call", "tool": "stock", "arguments": {"sku": "bolt"}}'
)
FINISH = '{"thought": "The result is there.", "type": "finish", "answer": "3"}'


@dataclass
class Pair:
    endpoint: ReplicaEndpoint
    fakes: list[Fake]


@contextmanager
def pair(*fakes: Fake) -> Iterator[Pair]:
    patience = Patience(tries=1, connect=1, idle=5)
    with ExitStack() as stack:
        for fake in fakes:
            stack.enter_context(serving(fake))
        servers = [open_server(parse_addresses(fake.address)[0], patience=patience) for fake in fakes]
        endpoint = ReplicaEndpoint(servers)
        stack.callback(endpoint.close)
        yield Pair(endpoint, list(fakes))


def test_a_run_stays_where_its_prefix_is(stock: Tool) -> None:
    replies = [CALL, FINISH] * 4
    with pair(Fake("openai", replies), Fake("openai", replies)) as both:
        agent = Agent(both.endpoint, [stock])
        assert all(agent.run(f"How many bolts, {number}?").status == "finished" for number in range(4))
        for fake in both.fakes:
            assert len(fake.completions) % 2 == 0


def test_turns_at_the_same_time_go_to_the_least_loaded() -> None:
    with pair(Fake("openai", ["a"] * 2), Fake("openai", ["b"] * 2)) as both:
        writings = []
        for number in range(4):
            prompt = Prompt((Segment(f"question {number}"),))
            writing = both.endpoint.complete(prompt, None, Limits(5), Sampling())
            next(writing)
            writings.append(writing)
        assert [len(fake.completions) for fake in both.fakes] == [2, 2]
        for writing in writings:
            writing.close()
        assert all(replica.running == 0 for replica in both.endpoint._replicas)


def test_a_server_that_fails_is_left_alone_and_the_turn_goes_to_the_other(stock: Tool) -> None:
    broken = Fake("openai", faults=[Fault(500, '{"error": "out of memory"}')] * 9)
    with pair(broken, Fake("openai", [CALL, FINISH] * 2)) as both:
        agent = Agent(both.endpoint, [stock])
        assert [agent.run("How many bolts?").answer for _ in range(2)] == ["3", "3"]
        assert len(broken.completions) == 1


def test_a_server_that_failed_is_asked_whether_it_is_there_before_it_gets_a_turn(
    stock: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localreact.endpoints.replicas.DOWN_S", 0.0)
    ill = Fake("openai", [CALL, FINISH], faults=[Fault(500, '{"error": "out of memory"}')])
    with pair(ill, Fake("openai", [CALL, FINISH] * 3)) as both:
        agent = Agent(both.endpoint, [stock])
        assert agent.run("How many bolts?").answer == "3"
        ill.gone = True
        assert agent.run("How many nuts?").answer == "3"
        assert len(ill.completions) == 1
        ill.gone = False
        assert agent.run("How many screws?").answer == "3"
        assert len(ill.completions) == 3


def test_what_the_request_is_to_blame_for_is_not_tried_elsewhere(stock: Tool) -> None:
    with pair(Fake("openai", faults=[Fault(400, '{"error": "no"}')]), Fake("openai", [CALL])) as both:
        assert Agent(both.endpoint, [stock]).run("How many bolts?").status == "endpoint_error"
        assert len(both.fakes[1].completions) == 0


def test_a_stream_cut_in_the_middle_is_not_begun_anew_elsewhere(stock: Tool) -> None:
    with pair(Fake("openai", [CALL], faults=[Fault(cut=3)]), Fake("openai", [CALL])) as both:
        assert Agent(both.endpoint, [stock]).run("How many bolts?").status == "endpoint_error"
        assert len(both.fakes[1].completions) == 0


def test_where_all_fail_the_last_failure_is_said(stock: Tool) -> None:
    faults = [Fault(500, '{"error": "out of memory"}')]
    with pair(Fake("openai", faults=list(faults)), Fake("openai", faults=list(faults))) as both:
        run = Agent(both.endpoint, [stock]).run("How many bolts?")
        assert run.status == "endpoint_error"
        assert "out of memory" in run.reason


def test_many_runs_at_once(stock: Tool) -> None:
    with pair(Fake("openai", [CALL] * 40), Fake("openai", [CALL] * 40)) as both:
        agent = Agent(both.endpoint, [stock], max_steps=2)
        statuses: list[str] = []
        threads = [
            threading.Thread(target=lambda n=n: statuses.append(agent.run(f"How many, {n}?").status))
            for n in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(statuses) == 16
        assert "endpoint_error" not in statuses
        assert sum(len(fake.completions) for fake in both.fakes) == 32
        assert all(len(fake.completions) >= 8 for fake in both.fakes)


def test_a_list_of_addresses_is_probed_and_only_what_all_enforce_counts(stock: Tool) -> None:
    with (
        serving(Fake("llama-server", enforces=GRAMMARS["llama-server"])) as one,
        serving(Fake("llama-server", enforces=("json_schema",))) as two,
    ):
        endpoint = open_endpoint(f"{one.address},{two.url}")
        assert isinstance(endpoint, ReplicaEndpoint)
        assert endpoint.languages == ("json_schema",)
        endpoint.close()


def test_a_server_that_died_does_not_keep_an_agent_from_working_with_the_others(stock: Tool) -> None:
    one = Fake("llama-server", [CALL, FINISH] * 2, enforces=GRAMMARS["llama-server"])
    with serving(one):
        with serving(Fake("llama-server", enforces=GRAMMARS["llama-server"])) as two:
            endpoint = open_endpoint(f"{one.address},{two.url}")
        for replica in getattr(endpoint, "_replicas", ()):
            replica.endpoint.dialect.transport.patience = Patience(tries=1, connect=1, idle=5)
        agent = Agent(endpoint, [stock])
        assert agent.level == "enforced by the server's grammar"
        assert [agent.run("How many bolts?").answer for _ in range(2)] == ["3", "3"]
    with pytest.raises(EndpointError, match="can't be reached"):
        Agent(endpoint, [stock], protocol="text")
    endpoint.close()


def test_different_models_are_no_replicas(tmp_path: object) -> None:
    with serving(Fake("llama-server")) as one, serving(Fake("openai")) as two:
        servers = [open_server(parse_addresses(fake.address)[0]) for fake in (one, two)]
        with pytest.raises(UsageError, match="aren't replicas"):
            ReplicaEndpoint(servers)
        for server in servers:
            server.close()

from __future__ import annotations

import json
import logging

import pytest

from localreact.endpoints.scripted import ScriptedEndpoint
from localreact.errors import UsageError
from localreact.serve.running import run
from localreact.serve.settings import Caps, Settings
from tests.serve.server import Server, asked, serving


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "192.168.0.7", "localhost.evil.example"]
)
def test_a_host_that_is_not_ours_is_refused(served: Server, host: str) -> None:
    answer = served.client.get("/health", headers={"host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:5", "::1"])
def test_this_machine_has_several_names(served: Server, host: str) -> None:
    assert served.client.get("/health", headers={"host": host}).status_code == 200


def test_pages_of_other_sites_are_refused_and_nothing_is_shared_with_them(served: Server) -> None:
    port = served.client.base_url.port
    for origin in (
        *("https://evil.example", "null", "http://localhost.evil.example", "http://localhost:3000"),
        *(f"http://localhost:{port}", "http://127.0.0.1", f"evil://127.0.0.1:{port}"),
    ):
        assert served.client.get("/version", headers={"origin": origin}).status_code == 403
        blind = {"origin": origin, "content-type": "text/plain"}
        answer = served.client.post("/v1/chat/completions", content=json.dumps(asked("x")), headers=blind)
        assert answer.json()["error"]["code"] == "origin_not_allowed"
        assert served.client.options("/v1/chat/completions", headers=blind).status_code == 403
    answer = served.client.get("/version", headers={"origin": f"http://127.0.0.1:{port}"})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_a_page_that_was_admitted_is_served_and_no_other() -> None:
    page = "http://localhost:3000"
    with serving(ScriptedEndpoint(["Hi."]), origins=(page,), api_key="k") as server:
        wish = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        before = server.client.options("/v1/chat/completions", headers={"origin": page, **wish})
        assert (before.status_code, before.headers["access-control-allow-origin"]) == (200, page)
        assert "authorization" in before.headers["access-control-allow-headers"]
        headers = {"origin": page, "authorization": "Bearer k"}
        answer = server.post("/v1/chat/completions", asked("x"), headers=headers)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, page)
        unknown = server.post("/v1/chat/completions", asked("x"), headers={"origin": page})
        assert (unknown.status_code, unknown.headers["access-control-allow-origin"]) == (401, page)
        for headers in ({"origin": "http://localhost:3001"}, {"origin": "http://localhost:3001", **wish}):
            answer = server.client.options("/v1/chat/completions", headers=headers)
            assert answer.status_code in (400, 403)
            assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origin", ["*", "localhost:3000", "http://localhost:3000/", "http://*.example"])
def test_an_origin_that_is_none_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(UsageError, match="origin"):
        run(Settings(origins=(origin,)), lambda: ScriptedEndpoint([]), print)


def test_with_a_key_only_those_who_show_it_are_served() -> None:
    with serving(ScriptedEndpoint(["Hi."] * 2), api_key="gehéim", hosts=("box.local",)) as server:
        assert server.client.get("/health").status_code == 200
        wrong: tuple[dict[bytes, bytes], ...] = (
            {},
            {b"authorization": b"Bearer no"},
            {b"authorization": "gehéim".encode()},
            {b"x-api-key": b""},
        )
        for headers in wrong:
            answer = server.client.get("/v1/models", headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"
        for headers in ({b"authorization": "Bearer gehéim".encode()}, {b"x-api-key": "gehéim".encode()}):
            assert server.client.get("/v1/models", headers=headers).status_code == 200
        admitted = server.client.get("/health", headers={"host": "box.local:80"})
        assert admitted.status_code == 200


def test_bodies_and_headers_have_their_limits() -> None:
    caps = Caps(body_bytes=2000, header_bytes=1000)
    with serving(ScriptedEndpoint([]), caps=caps) as server:
        assert server.refused(413, **asked("x" * 3000))["code"] == "body_too_large"
        assert server.client.get("/health", headers={"x-long": "y" * 2000}).status_code == 431


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b'{"messages": NaN}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "x"}], "metadata": -1e999}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b'{"messages": [{"role": "user", "content": 5}]}',
        b'{"messages": {"0": {}}}',
    ],
)
def test_a_malformed_body_is_the_clients_fault(served: Server, body: bytes) -> None:
    answer = served.client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_without_its_type_is_read_as_json() -> None:
    with serving(ScriptedEndpoint(["Hi."])) as server:
        answer = server.client.post(
            "/v1/chat/completions",
            content=b'{"messages": [{"role": "user", "content": "x"}]}',
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
        assert answer.status_code == 200


def test_a_failure_of_ours_tells_nothing_and_logs_no_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), serving(ScriptedEndpoint([RuntimeError("about SECRET")])) as server:
        error = server.refused(500, **asked("SECRET"))
    assert "SECRET" not in str(error)
    assert "RuntimeError" in caplog.text
    assert "SECRET" not in caplog.text


def test_unknown_routes_and_methods_are_errors_like_all_others(served: Server) -> None:
    assert served.client.get("/nope").json()["error"]["type"] == "not_found_error"
    assert served.client.get("/v1/chat/completions").status_code == 405

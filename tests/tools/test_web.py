"""`http_get` against a server of our own."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from localreact.errors import UsageError
from localreact.tools import Toolbox
from localreact.tools.builtin import DEFAULT, load_tools
from localreact.tools.web import WebError, _public, fetch, http_get
from localreact.types import ToolCall

PAGE = """<html><head><title>A page</title><style>p {}</style><script>alert("no")</script></head>
<body><h1>Heading</h1><p>One <b>bold</b> word &amp; more.</p><ul><li>a<li>b</ul></body></html>"""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        kind, status, body, headers = "text/plain; charset=utf-8", 200, b"plain text", dict[str, str]()
        match self.path:
            case "/page":
                kind, body = "text/html", PAGE.encode()
            case "/latin":
                kind, body = "text/plain; charset=latin-1", "é".encode("latin-1")
            case "/charset":
                kind = "text/plain; charset=klingon"
            case "/json":
                kind, body = "application/ld+json", b'{"a": 1}'
            case "/image":
                kind = "image/png"
            case "/missing":
                status = 404
            case "/around":
                status, headers = 302, {"Location": "/around"}
            case "/moved":
                status, headers = 301, {"Location": "/page"}
            case "/away":
                status, headers = 302, {"Location": "file:///etc/passwd"}
            case "/large":
                body = b"x" * 2_100_000
            case path if path.startswith("/echo"):
                body = path.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):  # the reader may have had enough
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", "plain text"),
        ("", "plain text"),
        ("/page", "A page\nHeading\nOne bold word & more.\na\nb"),
        ("/latin", "é"),
        ("/charset", "plain text"),
        ("/json", '{"a": 1}'),
        ("/moved", "A page\nHeading\nOne bold word & more.\na\nb"),
        ("/echo?q=日 b", "/echo?q=%E6%97%A5%20b"),
    ],
)
def test_pages_are_read_as_text(server: str, path: str, text: str) -> None:
    assert fetch(server + path, allow_private=True) == text


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/missing", "404"),
        ("/image", "the page is image/png, not text"),
        ("/around", "more than 5 redirections"),
        ("/away", "no http or https address"),
        ("/large", "larger than"),
    ],
)
def test_what_cannot_be_read_is_told(server: str, path: str, message: str) -> None:
    with pytest.raises(WebError, match=message):
        fetch(server + path, allow_private=True)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.org",
        "example.org",
        "",
        "http://",
        "http://[",
        "http://a:b/",
        "http://u:p@h/",
    ],
)
def test_only_http_and_https_are_read(url: str) -> None:
    with pytest.raises(WebError):
        fetch(url, allow_private=True)


def test_this_machine_and_its_surroundings_are_refused(server: str) -> None:
    port = server.rpartition(":")[2]
    for host in (
        "127.0.0.1",
        "localhost",
        "0.0.0.0",
        "2130706433",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "10.0.0.1",
    ):
        with pytest.raises(WebError, match=r"no public address|there is no host"):
            fetch(f"http://{host}:{port}/")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::5db8:d822", True),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert _public(address) is public


def resolved(monkeypatch: pytest.MonkeyPatch, addresses: list[str]) -> list[str]:
    """Name look-ups answered from a list; the names that were looked up."""
    asked: list[str] = []

    def resolve(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses.pop(0), port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


def test_a_redirection_to_a_private_address_is_refused(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localreact.tools.web._public", lambda address: address == "127.0.0.1")
    # looked up, connected to; then the redirection's look-up
    asked = resolved(monkeypatch, ["127.0.0.1", "127.0.0.1", "10.0.0.1"])
    with pytest.raises(WebError, match=r"'public\.example' is 10\.0\.0\.1"):
        fetch(f"http://public.example:{server.rpartition(':')[2]}/moved")
    assert asked == ["public.example", "127.0.0.1", "public.example"]


def test_a_name_of_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolved(monkeypatch, ["127.0.0.1"])
    with pytest.raises(WebError, match=r"'public\.example' is 127\.0\.0\.1"):
        fetch("http://public.example/")
    assert asked == ["public.example"]


def test_it_is_off_unless_asked_for_by_name() -> None:
    assert "http_get" not in DEFAULT
    assert [each.name for each in load_tools(["http_get"], None)] == ["http_get"]
    refused = Toolbox([http_get()]).execute(ToolCall("", "http_get", {"url": "http://127.0.0.1:1/"}))
    assert "no public address" in refused.content
    with pytest.raises(UsageError, match="no tool"):
        load_tools(["http"], None)


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localreact.tools.web.SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(WebError, match="timed out"):
        fetch(f"http://127.0.0.1:{silent.getsockname()[1]}/", allow_private=True)

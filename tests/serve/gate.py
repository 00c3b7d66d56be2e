"""A tool that keeps a run busy."""

from __future__ import annotations

import threading

from localreact import tool


class Gate:
    """A tool that waits until it is let go."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Event(), threading.Event()

        @tool
        def stock(sku: str) -> int:
            """How many of an article are left."""
            self.entered.set()
            assert self.open.wait(30)
            return 3

        self.tool = stock

"""TextWorld Express (PyPI: textworld-express, and Java): text games, with their lists of valid actions."""

from __future__ import annotations

from typing import Any

from localreact.errors import MissingPartError, UsageError
from localreact.eval.play import Seen

FOLDS = ("train", "dev", "test")


class TextWorldExpress:
    """One game of it. Seeds count through the fold's own.

    Raises:
        MissingPartError: the package, or Java, isn't there.
        UsageError: no such game, or fold.
    """

    def __init__(self, game: str = "coin", params: str = "", fold: str = "test") -> None:
        try:
            from textworld_express import TextWorldExpressEnv
        except ImportError as error:
            raise MissingPartError(
                "textworld-express isn't installed", "Run: pip install textworld-express (it needs Java)."
            ) from error
        try:
            self._environment: Any = TextWorldExpressEnv(envStepLimit=10_000)
        except OSError as error:
            raise MissingPartError(f"Java can't be started: {error}", "Install a Java runtime.") from error
        names = list(self._environment.getGameNames())
        if game not in names:
            self.close()
            raise UsageError(f"there is no game {game!r}", f"Games: {', '.join(names)}.")
        if fold not in FOLDS:
            self.close()
            raise UsageError(f"there is no fold {fold!r}", f"Folds: {', '.join(FOLDS)}.")
        self._environment.load(game, params)
        self._fold = fold
        self._seeds = list(getattr(self._environment, f"getValidSeeds{fold.capitalize()}")())
        self._actions: list[str] = []

    def reset(self, seed: int) -> Seen:
        text, state = self._environment.reset(seed=self._seeds[seed % len(self._seeds)], gameFold=self._fold)
        return self._seen(f"{state['taskDescription']}\n{text}", state)

    def valid_actions(self) -> list[str]:
        return self._actions

    def step(self, action: str) -> Seen:
        text, _, _, state = self._environment.step(action)
        return self._seen(text, state)

    def close(self) -> None:
        self._environment.close()

    def _seen(self, text: str, state: Any) -> Seen:
        self._actions = sorted(state["validActions"])
        over = bool(state["tasksuccess"] or state["taskfailure"])
        return Seen(text.strip(), max(0.0, float(state["score"])), over)

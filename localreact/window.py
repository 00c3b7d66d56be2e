"""Keeps a run's prompts within their context: older steps in short, results cut to what fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from localreact import compaction, context, paging
from localreact.budgets import SHORTEST_TURN, Budgets
from localreact.endpoints.base import Endpoint
from localreact.policy import Room
from localreact.protocols import Protocol
from localreact.run import Digest, Events, RunState
from localreact.trace.events import Compacted
from localreact.types import Completion, Observation, Prompt, Segment


@dataclass(frozen=True)
class Window:
    """`summed_up` asks the model for a summary of the steps so far, in place of lines; None: it isn't
    asked. It gives None where there was no room to ask."""

    endpoint: Endpoint
    protocol: Protocol
    budgets: Budgets
    summed_up: Callable[[RunState, context.Transcript], Completion | None] | None = None

    def room(self, transcript: context.Transcript) -> Room:
        needed, size = self.endpoint.count(transcript.prompt), self.endpoint.n_ctx
        return Room(needed, min(size, self.budgets.max_context or size))

    def make_room(
        self,
        state: RunState,
        transcript: context.Transcript,
        wanted: int,
        observation: Observation | None = None,
    ) -> Events[None]:
        """Put older steps in short until `wanted` tokens are left besides the last turn's, and for the
        observation what it needs, or a quarter of the context."""
        room = before = self.room(transcript)
        wanted += room.kept_for_last_turn(self.budgets)
        if observation is not None:
            most = replace(observation, content=paging.shown_at_most(observation))
            wanted += min(self._tokens_of(most), room.size // 4)
        kept: int | None = None
        summary: Completion | None = None
        for keep in range(self.budgets.keep_steps, -1, -1):
            told = len(state.steps) - keep
            if state.recorded is not None:
                left_out, told, summary = state.recorded
                if told > state.digest.told:
                    digest = self._digest(state, summary, told, room.size, left_out)
            elif room.left < wanted and told > state.digest.told:
                if kept is None and self.summed_up is not None:
                    summary = self.summed_up(state, transcript)
                digest = self._digest(state, summary, told, room.size)
            else:
                continue
            if told > state.digest.told:
                state.digest = digest
                at = transcript.compact(compaction.segments(digest), len(state.steps) - told)
                kept = at if kept is None else min(kept, at)
                room = self.room(transcript)
        if kept is not None:
            if summary is not None:
                state.usage += summary.usage
                state.timings += summary.timings
            told, left_out = state.digest.told, state.digest.left_out
            yield Compacted(len(state.steps) + 1, kept, told, left_out, before.needed, room.needed, summary)

    def _digest(
        self, state: RunState, summary: Completion | None, told: int, size: int, left_out: int | None = None
    ) -> Digest:
        """The steps up to `told` in short; where it is recorded, as it was then."""
        if summary is not None and (text := compaction.text_of(summary, self.protocol)):
            return compaction.summed_up(text, state.steps, told)
        if left_out is not None:
            return compaction.digest(state.digest, state.steps, left_out, told, size)
        return compaction.longer(state.digest, state.steps, told, size, self._count)

    def fit(
        self,
        transcript: context.Transcript,
        observation: Observation,
        step: int,
        cited_as: int | None,
        more: bool,
    ) -> Observation:
        """The observation, cut so that a last turn still fits into the context after it. `more`: the model
        can ask for the rest."""

        def shown(content: str) -> Observation:
            return replace(observation, content=content)

        def count(content: str) -> int:
            return self._tokens_of(shown(content), cited_as)

        room = self.room(transcript)
        left = room.left - room.kept_for_last_turn(self.budgets) - 2 * SHORTEST_TURN
        content, excerpt = paging.fit(observation, step, left, count, more)
        return replace(observation, content=content, excerpt=excerpt)

    def _count(self, text: str) -> int:
        return self.endpoint.count(Prompt((Segment(text),)))

    def _tokens_of(self, observation: Observation, cited_as: int | None = None) -> int:
        return self.endpoint.count(Prompt(tuple(self.protocol.observation(observation, cited_as))))

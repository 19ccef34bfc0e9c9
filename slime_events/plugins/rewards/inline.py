"""`AtOnce`: grades in this very process what is over at once (`IMMEDIATE`), with no time limit to keep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards import messages
from slime_events.plugins.rewards.dispatch import grader_name
from slime_events.plugins.rewards.outcome import Outcome
from slime_events.plugins.rewards.registry import IMMEDIATE
from slime_events.plugins.rewards.worker import Worker
from slime_events.plugins.sample import Sample


class AtOnce:
    """Outcomes as from a process of the pool."""

    def __init__(self, settings: RewardSettings) -> None:
        self._settings = settings
        self._worker = Worker(messages.Setup(settings, {}, str(Path.cwd())), mark=lambda number: None)

    def grades(self, samples: Sequence[Sample]) -> bool:
        """Whether all of them are for it."""
        return {grader_name(self._settings, sample) for sample in samples} <= IMMEDIATE

    def grade(self, samples: Sequence[Sample], *, evaluation: bool) -> list[Outcome]:
        """Each sample by itself; outcomes in their order. Nothing a grader does raises here."""
        found: list[Outcome] = []
        units = [messages.Unit([sample], False, evaluation) for sample in samples]
        self._worker.grade(units, lambda done: found.extend(done.outcomes))
        return found

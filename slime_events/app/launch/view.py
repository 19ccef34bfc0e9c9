"""`View`: what the launcher tells whoever watches."""

from __future__ import annotations

from typing import Protocol

from slime_events.analysis.model.progress import Progress, StepLine


class View(Protocol):
    """Told of everything that a person may want to see; decides by itself what to show."""

    def note(self, text: str) -> None:
        """A sentence."""

    def begin(self, progress: Progress) -> None:
        """What there was before: of a run that goes on, nothing is told again."""

    def step(self, line: StepLine, progress: Progress, steps: int) -> None:
        """A step was committed."""

    def tick(self, progress: Progress, steps: int) -> None:
        """Something happened."""

    def close(self) -> None:
        """Nothing more will come."""

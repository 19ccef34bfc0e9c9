"""`Restarts`: whether a role whose process is gone is started again."""

from __future__ import annotations


class Restarts:
    """A fold of deaths. most: deaths of one role between which the run did not move on that are one too many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._deaths: dict[str, tuple[int, int]] = {}

    def allows(self, role: str, moved: int) -> bool:
        """Fold a death in; whether to start the role again. moved: position of the newest event that moved the run."""
        count, before = self._deaths.get(role, (0, moved))
        count = count + 1 if moved == before else 1
        self._deaths[role] = count, moved
        return count < self._most

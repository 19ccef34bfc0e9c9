"""`RecordedFeed`: the prompts of a run out of its log, for a replay without the files that they came from."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.event import Event, Purpose
from schemas.prompts import PromptRejected, PromptSubmitted
from slime_events.conductor.prompts import INBOX, TRAIN
from slime_events.conductor.turn import Prompted


class RecordedFeed:
    """A `Feed`. What was drawn stands for the file: each row at its offset, each evaluation with its version."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, Prompted]] = {}
        self._evaluations: dict[tuple[str, int], list[Prompted]] = {}
        self._prompts = 0

    @property
    def prompts(self) -> int:
        """How many prompts it has."""
        return self._prompts

    def add(self, event: Event) -> None:
        """Take in the next event of the log; whatever is no prompt of a file is left aside."""
        if isinstance(event, PromptSubmitted) and event.source.path != INBOX:
            self._prompts += 1
            if event.purpose is Purpose.EVAL:
                self._evaluations.setdefault((event.dataset, event.version or 0), []).append(event)
            else:
                self._rows.setdefault(event.source.path, {}).setdefault(event.source.offset, event)
        elif isinstance(event, PromptRejected) and event.dataset == TRAIN and event.source.offset >= 0:
            self._rows.setdefault(event.source.path, {}).setdefault(event.source.offset, event)

    def malformed(self) -> list[PromptRejected]:
        """None: lines that are no rows are no decision."""
        return []

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """The next `count` prompts after the cursors, or what the log has of them."""
        taken: list[Prompted] = []
        for path, rows in self._rows.items():
            offset = cursors.get(path, 0)
            while count > 0 and offset in rows:
                taken.append(rows[offset])
                count -= isinstance(rows[offset], PromptSubmitted)
                offset += 1
        return taken

    def evaluation(self, name: str, version: int) -> list[Prompted]:
        """The prompts that were recorded of it."""
        return list(self._evaluations.get((name, version), ()))

"""`RecordedFeed`: the prompts of a run out of its log, for a replay without the files that they came from."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from schemas.event import Event, Purpose
from schemas.prompts import PromptRejected, PromptSubmitted
from slime_events.analysis.replay.equality import is_decision
from slime_events.loop.prompts.prompt import Prompted
from storage.log import Recorded


class RecordedFeed:
    """A `Feed` for cursors that only grow. What was drawn stands for the files: in its order, each row behind its
    source's cursor once.
    """

    def __init__(self) -> None:
        self._rows: list[Prompted] = []
        self._done = 0  # so many rows lie behind every cursor that was asked with
        self._evaluations: dict[tuple[str, int], list[Prompted]] = {}

    @property
    def prompts(self) -> int:
        """How many prompts it has."""
        return len(self._rows) + sum(map(len, self._evaluations.values()))

    def add(self, event: Event) -> None:
        """Take in the next event of the log; whatever was not drawn is left aside."""
        if not isinstance(event, PromptSubmitted | PromptRejected) or not is_decision(event):
            return
        if isinstance(event, PromptSubmitted) and event.purpose is Purpose.EVAL:
            self._evaluations.setdefault((event.dataset, event.version or 0), []).append(event)
        else:
            self._rows.append(event)

    def observe(self, recorded: Recorded) -> None:
        """Nothing: it knows them all."""

    def malformed(self) -> list[PromptRejected]:
        """None: lines that are no rows are no decision."""
        return []

    def take(self, cursors: Mapping[str, int], count: int) -> list[Prompted]:
        """The next `count` prompts after the cursors, or what the log has of them."""
        while self._done < len(self._rows) and _is_behind(self._rows[self._done], cursors):
            self._done += 1
        taken: list[Prompted] = []
        for row in itertools.islice(self._rows, self._done, None):
            if count <= 0:
                break
            if not _is_behind(row, cursors):
                taken.append(row)
                count -= isinstance(row, PromptSubmitted)
        return taken

    def evaluation(self, name: str, version: int) -> list[Prompted]:
        """The prompts that were recorded of it."""
        return list(self._evaluations.get((name, version), ()))


def _is_behind(row: Prompted, cursors: Mapping[str, int]) -> bool:
    return row.source.offset < cursors.get(row.source.path, 0)

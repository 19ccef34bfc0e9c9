"""`RejectionWatch`: what the launcher says of rejected groups, before they end the run and without a line for each."""

from __future__ import annotations

from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
from slime_events.analysis.model.rejections import Rejections

FILTERED = 10
"""Groups that a filter has dropped before there is a word of it: it is there to drop some."""


class RejectionWatch:
    """A fold. It speaks of the first group that failed, and of ten times as many each time."""

    def __init__(self) -> None:
        self._rejections = Rejections()
        self._accepted = 0
        self._failed_next, self._total_next = 1, FILTERED

    def apply(self, event: Event) -> str | None:
        """Fold one event in; a sentence where it is news."""
        if isinstance(event, GroupAccepted):
            self._accepted += 1
        if not isinstance(event, GroupRejected):
            return None
        rejections = self._rejections
        rejections.apply(event)
        if rejections.failed < self._failed_next and rejections.total < self._total_next:
            return None
        while rejections.failed >= self._failed_next:
            self._failed_next *= 10
        while rejections.total >= self._total_next:
            self._total_next *= 10
        return f"{rejections.total} of {self._accepted + rejections.total} groups rejected: {rejections.commonest()}"

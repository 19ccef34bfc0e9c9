"""`Rejections`: why groups were rejected, counted by reason, whichever samples a reason names."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.groups import GroupRejected, RejectionCause

_COUNTED = re.compile(r"\b(group|sample) \d+\b")
"""How messages name numbered groups and samples."""


class Reason(NamedTuple):
    """text: without the ids of samples and groups."""

    cause: RejectionCause
    text: str

    def __str__(self) -> str:
        return f"{self.cause.replace('_', ' ')}, {self.text}"


def reason_of(event: GroupRejected) -> Reason:
    """The reason of a rejection, without what is its own: ids and counts."""
    if event.cause is RejectionCause.STALE:  # its reason counts versions
        return Reason(event.cause, "no step within its bound had a place for it")
    text = event.reason
    for sample in sorted(event.samples, key=len, reverse=True):
        text = text.removeprefix(f"{sample}: ").replace(sample, "<sample>")
    return Reason(event.cause, _COUNTED.sub(r"a \1", text.replace(event.group, "<group>")))


@dataclass(slots=True)
class Rejections:
    """A fold of group.rejected. failed: rejected groups that no filter chose."""

    counts: Counter[Reason] = field(default_factory=Counter)
    failed: int = 0

    def apply(self, event: GroupRejected) -> None:
        """Count one."""
        self.counts[reason_of(event)] += 1
        self.failed += event.cause is not RejectionCause.FILTER

    @property
    def total(self) -> int:
        """Rejected groups."""
        return self.counts.total()

    def commonest(self) -> str:
        """`reward failed, raised: ... no nines (rewards.py:4), 13 x`, and how many others there are; "" for none."""
        if not self.counts:
            return ""
        ((reason, count),) = self.counts.most_common(1)
        others = len(self.counts) - 1
        more = f", and {others} other reason{'s' if others > 1 else ''}" if others else ""
        return f"{reason}, {count} x{more}"

"""`Rejections`: number of rejected groups by reason. Reasons that differ only in ids count as one."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from schemas.doc import doc
from schemas.groups import GroupRejected, RejectionCause

_COUNTED = re.compile(r"\b(group|sample) \d+\b")
"""Numbered groups and samples in messages."""


class Reason(NamedTuple):
    """A reason for a rejection, without the ids of samples and groups."""

    cause: RejectionCause
    text: str

    def __str__(self) -> str:
        return f"{self.cause.replace('_', ' ')}, {self.text}"


def reason_of(event: GroupRejected) -> Reason:
    """Return the reason of a rejection, without ids and counts, which differ from group to group."""
    if event.cause is RejectionCause.STALE:  # its reason counts versions
        return Reason(event.cause, "no step within its staleness bound had room for it")
    text = event.reason
    for sample in sorted(event.samples, key=len, reverse=True):
        text = text.removeprefix(f"{sample}: ").replace(sample, "<sample>")
    return Reason(event.cause, _COUNTED.sub(r"a \1", text.replace(event.group, "<group>")))


@dataclass(slots=True)
class Rejections:
    """Count rejected groups."""

    counts: Annotated[Counter[Reason], doc("number of groups by reason")] = field(default_factory=Counter)
    failed: Annotated[int, doc("number of groups that were rejected by anything but a filter")] = 0

    def apply(self, event: GroupRejected) -> None:
        self.counts[reason_of(event)] += 1
        self.failed += event.cause is not RejectionCause.FILTER

    @property
    def total(self) -> int:
        return self.counts.total()

    def commonest(self) -> str:
        """Return the most frequent reason and the number of the others, as `reward failed, raised: ... no nines
        (rewards.py:4), 13 x`; "" if there is none.
        """
        if not self.counts:
            return ""
        ((reason, count),) = self.counts.most_common(1)
        others = len(self.counts) - 1
        more = f", and {others} other reason{'s' if others > 1 else ''}" if others else ""
        return f"{reason}, {count} x{more}"

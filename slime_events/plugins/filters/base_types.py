"""The return type of a dynamic sampling filter, and slime's rules for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slime_events.plugins.filters.decide import FilterDecision


@dataclass
class DynamicFilterOutput:
    """A filter's verdict on one group. A bare bool stands for `DynamicFilterOutput(keep=...)`.

    `keep_when_insufficient`: a group with keep=False is still taken where dropping it would need another round of
    sampling.
    """

    keep: Any
    reason: str | None = None
    keep_when_insufficient: bool = False


def should_drop(output: DynamicFilterOutput | FilterDecision, *, insufficient: bool) -> bool:
    """slime's rule: a rejected group goes, unless it may fill up and no more others are left than the step needs."""
    return not (output.keep or (output.keep_when_insufficient and insufficient))

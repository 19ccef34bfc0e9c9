"""The return type of a dynamic sampling filter, and slime's rules for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any


@dataclass
class DynamicFilterOutput:
    """A filter's verdict on one group. A bare bool stands for `DynamicFilterOutput(keep=...)`.

    `keep_when_insufficient`: a group with keep=False is still taken where dropping it would need another round of
    sampling.
    """

    keep: Any
    reason: str | None = None
    keep_when_insufficient: bool = False


def should_drop(output: DynamicFilterOutput, *, remaining_batch_size: int, target_data_size: int) -> bool:
    """slime's rule: a rejected group goes, unless it may fill up and too few others are left.

    `remaining_batch_size`: groups kept or in flight. `target_data_size`: groups the step needs.
    """
    if output.keep:
        return False
    return not (output.keep_when_insufficient and remaining_batch_size <= target_data_size)


class MetricGatherer:
    """Counts of drops by reason, under slime's metric names. A drop without a reason is not counted (slime)."""

    def __init__(self) -> None:
        self._drops: Counter[str] = Counter()

    def on_dynamic_filter_drop(self, reason: str | None) -> None:
        """One group was dropped."""
        if reason:
            self._drops[reason] += 1

    def collect(self) -> dict[str, int]:
        """`rollout/dynamic_filter/drop_<reason>` -> count."""
        return {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in self._drops.items()}

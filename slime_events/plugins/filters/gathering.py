"""slime's helpers for a dynamic filter: `MetricGatherer`, `call_dynamic_filter` and the rule for its fallback."""

from collections import Counter
from collections.abc import Callable

from slime_events.plugins.filters.base_types import DynamicFilterOutput
from slime_events.plugins.filters.decide import should_drop


class MetricGatherer:
    """Counter of the reasons for dropped groups."""

    def __init__(self) -> None:
        self._dropped: Counter[str] = Counter()

    def on_dynamic_filter_drop(self, reason: str | None) -> None:
        """Count a dropped group. A group without a reason is not counted."""
        self._dropped.update([reason] if reason else [])

    def collect(self) -> dict[str, int]:
        """Return slime's metrics, `rollout/dynamic_filter/drop_<reason>`."""
        return {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in self._dropped.items()}


def call_dynamic_filter(fn: Callable[..., object] | None, *args: object, **kwargs: object) -> DynamicFilterOutput:
    """Return the filter's verdict. A bare bool becomes a verdict. Without a filter every group is kept."""
    verdict = True if fn is None else fn(*args, **kwargs)
    return verdict if isinstance(verdict, DynamicFilterOutput) else DynamicFilterOutput(keep=verdict)


def should_drop_dynamic_filter_output(
    output: DynamicFilterOutput, *, remaining_batch_size: int, target_data_size: int
) -> bool:
    """Return whether to drop a group.

    `remaining_batch_size` is the number of groups in progress or kept; `target_data_size` is a step's.
    """
    return should_drop(output, insufficient=remaining_batch_size <= target_data_size)

"""slime's helpers around a dynamic filter: `MetricGatherer`, `call_dynamic_filter` and the rule of its fallback."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from slime_events.plugins.filters.base_types import DynamicFilterOutput
from slime_events.plugins.filters.decide import should_drop


class MetricGatherer:
    """Counts the reasons of dropped groups."""

    def __init__(self) -> None:
        self._dropped: Counter[str] = Counter()

    def on_dynamic_filter_drop(self, reason: str | None) -> None:
        """One more group; without a reason it is not counted."""
        self._dropped.update([reason] if reason else [])

    def collect(self) -> dict[str, int]:
        """slime's metrics, `rollout/dynamic_filter/drop_<reason>`."""
        return {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in self._dropped.items()}


def call_dynamic_filter(fn: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> DynamicFilterOutput:
    """The filter's verdict; a bare truth value is one, and without a filter everything is kept."""
    verdict = True if fn is None else fn(*args, **kwargs)
    return verdict if isinstance(verdict, DynamicFilterOutput) else DynamicFilterOutput(keep=verdict)


def should_drop_dynamic_filter_output(
    output: DynamicFilterOutput, *, remaining_batch_size: int, target_data_size: int
) -> bool:
    """Whether a group goes. remaining_batch_size: groups that are under way or kept; target_data_size: of a step."""
    return should_drop(output, insufficient=remaining_batch_size <= target_data_size)

"""slime's helpers around a dynamic filter: `MetricGatherer`, `call_dynamic_filter`."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from slime_events.plugins.filters.base_types import DynamicFilterOutput


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

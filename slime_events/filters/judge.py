"""`make_judge`: the run's filter as the conductor asks it."""

from __future__ import annotations

from collections.abc import Callable

from slime_events.args_view import ArgsView
from slime_events.config.rollout import RolloutSettings
from slime_events.filters.decide import FilterDecision, run_filter
from slime_events.plug_points import load_function
from slime_events.sample_view import group_samples
from slime_events.state.group import GroupState

KNOWN = 4096
"""Groups whose figures are kept."""


def make_judge(rollout: RolloutSettings, args: ArgsView) -> Callable[[GroupState], FilterDecision]:
    """The filter of --dynamic-sampling-filter-path, or one that keeps everything."""
    path = rollout.dynamic_sampling_filter_path
    if not path:
        return KeepAll(args)
    function = load_function(path)
    return lambda group: run_filter(function, args, group_samples(group))


class KeepAll:
    """No filter: every group is kept, with its figures. They are computed once for a group however often it is asked
    for, so that the turn that seals a batch, which the trainer waits for, has them.
    """

    def __init__(self, args: ArgsView) -> None:
        self._args = args
        self._known: dict[tuple[str, tuple[float, ...]], FilterDecision] = {}

    def __call__(self, group: GroupState) -> FilterDecision:
        """The decision on a group whose samples all have rewards."""
        key = (group.group, group.graded)
        if key not in self._known:
            self._known[key] = run_filter(None, self._args, group_samples(group))
            if len(self._known) > KNOWN:
                self._known.pop(next(iter(self._known)))
        return self._known[key]

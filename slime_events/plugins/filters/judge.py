"""`make_judge`: the run's filter as the conductor asks it."""

from __future__ import annotations

from collections.abc import Callable

from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.state.group import GroupState
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.filters.decide import FilterDecision, kept, run_filter
from slime_events.plugins.filters.figures import figures_of
from slime_events.plugins.loader import load_function
from slime_events.plugins.sample_view import group_samples


def make_judge(rollout: RolloutSettings, shown: ArgsView) -> Callable[[GroupState], FilterDecision]:
    """The filter of --dynamic-sampling-filter-path, or one that keeps everything. shown: what it sees as its `args`."""
    path = rollout.dynamic_sampling_filter_path
    if not path:
        return keep
    function = load_function(path)
    return lambda group: run_filter(function, shown, group_samples(group))


def keep(group: GroupState) -> FilterDecision:
    """No filter: the group is kept, with its figures. Nothing else is made of it: the trainer waits for this."""
    return kept(figures_of(group.rollout_rewards))

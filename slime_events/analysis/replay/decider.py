"""`Decider`: what the conductor decides by, made of the settings in force at a place in the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import settings_from
from slime_events.core.state.group import GroupState
from slime_events.loop.conductor.accept import GroupFilter
from slime_events.loop.conductor.plan import Plan, make_plan
from slime_events.loop.conductor.seal import Normalise
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.filters.decide import FilterDecision
from slime_events.plugins.filters.judge import make_judge

Changes = Mapping[str, Mapping[str, Any]]
"""Component to field to value."""
KNOWN = 4096
"""Groups whose verdicts are kept."""


@dataclass(frozen=True, slots=True)
class Decider:
    """plan, judge, normalise: as `slime_events.loop.conductor.cycle.run_cycle` takes them."""

    plan: Plan
    judge: GroupFilter
    normalise: Normalise

    @classmethod
    def of(cls, settings: TrainSettings) -> Decider:
        """As the conductor of a run with these settings has them. Raises PlugPointError, ValueError."""
        judge = make_judge(settings.rollout, ArgsView.of(settings.rollout, settings.reward, settings.algorithm))
        return cls(
            make_plan(settings.rollout, settings.evaluation, settings.trainer),
            _once_each(judge),
            lambda rewards, sizes: normalize_rewards(rewards, sizes, settings.algorithm),
        )


def _once_each(judge: GroupFilter) -> GroupFilter:
    """The same judge, asked once about a group that has ended: a replay comes by at many positions."""
    last: dict[str, tuple[tuple[Any, ...], FilterDecision]] = {}

    def remembering(group: GroupState) -> FilterDecision:
        content = tuple((s.sample, s.reward, s.length, s.digest) for s in group.samples.values())
        if group.group not in last or last[group.group][0] != content:
            last[group.group] = (content, judge(group))
            if len(last) > KNOWN:
                last.pop(next(iter(last)))
        return last[group.group][1]

    return remembering


def settings_under(values: Mapping[str, Mapping[str, Any]], changes: Changes) -> TrainSettings:
    """What events have said, under what is to be tried instead. Raises InvalidValue."""
    return settings_from({part: {**values.get(part, {}), **changes.get(part, {})} for part in {*values, *changes}})

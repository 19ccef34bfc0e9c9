"""`try_filter`: the verdict of one of our own filters on one recorded group, as `rescore` gives it for a whole run."""

from __future__ import annotations

from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import InvalidValue
from slime_events.analysis.rescore.compare import recorded_grade, recorded_verdict, verdict_on
from slime_events.core.config.settings import TrainSettings
from slime_events.core.state.group import GroupState
from slime_events.model.records import Group
from slime_events.plugins.args_view import ArgsView, for_one_call
from slime_events.plugins.filters.decide import FilterDecision, GroupFilter, run_filter
from slime_events.plugins.filters.dynamic_sampling import FILTERS
from slime_events.plugins.sample_view import group_samples

NONE = "none"
"""Name of the filter that keeps every group, as in events."""
NAMES = (NONE, *FILTERS)
"""Filters that can be tried. A user's filter is code, which only `rescore` runs."""


class FilterTrial(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of another filter on a group, with the rewards as recorded."""

    filter: Annotated[str, doc("name of the filter")]
    accepted: Annotated[bool, doc("the group would be trained on")]
    reason: Annotated[str | None, doc("reason that the filter gives, or why the group is rejected without it")]
    differs: Annotated[bool, doc("the recorded decision was the opposite")]
    beyond: Annotated[bool, doc("it was rejected whatever a filter decides: a rollout failed, or it was too stale")]
    fallback: Annotated[
        bool, doc("the filter drops the group only while others fill the step: then it decides as recorded")
    ]


def try_filter(group: Group, name: str, settings: TrainSettings) -> FilterTrial:
    """Return the verdict of the filter `name` on a group with the samples that have ended. settings: those of the run.

    Raises InvalidValue for a name that is not in `NAMES`, and for a group without a recorded decision.
    """
    if name not in NAMES:
        raise InvalidValue(f"{name!r} is not a filter that can be tried here. There are {', '.join(NAMES)}; for a "
                           "filter of your own use slime-events rescore")  # fmt: skip
    if group.verdict is None or group.prompt is None:
        raise InvalidValue(f"group {group.group} has no decision of a filter: it is undecided, or of an evaluation")
    ended = {sample.sample: sample for sample in group.members if sample.completed is not None}
    decided = msgspec.structs.replace(group, samples=ended)
    grades = [recorded_grade(sample) for sample in ended.values()]
    verdict = verdict_on(decided, grades, _judge(name, settings))
    return FilterTrial(
        filter=name,
        accepted=verdict.accepted,
        reason=verdict.reason,
        differs=verdict.accepted != recorded_verdict(group).accepted,
        beyond=verdict.beyond,
        fallback=verdict.fallback,
    )


def _judge(name: str, settings: TrainSettings) -> GroupFilter | None:
    if name == NONE:
        return None
    function, shown = FILTERS[name], ArgsView.of_run(settings)

    def judge(group: GroupState) -> FilterDecision:
        return run_filter(function, for_one_call(shown), group_samples(group))

    return judge

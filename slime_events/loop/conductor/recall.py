"""Groups whose rollouts are recorded ones: what is asked for in place of engines' work, and what is to be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from schemas.ids import place_of
from schemas.recorded import Recalled
from schemas.rollouts import RolloutRequested
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase, SampleState
from slime_events.core.state.run import RunState


class Recall(NamedTuple):
    """A sample that was asked for, and `recorded`, the sample of the other run that is the answer."""

    group: GroupState
    sample: SampleState
    recalled: Recalled
    recorded: str


def as_recalls(requests: Sequence[RolloutRequested], recalled: Recalled) -> list[RolloutRequested]:
    """The requests of a group, each with the recorded sample that answers it."""
    pairs = zip(requests, recalled.samples, strict=False)
    return [replace(request, min_version=recalled.oldest, recalls=sample) for request, sample in pairs]


def recalls_due(state: RunState) -> list[Recall]:
    """What was asked for of recorded rollouts and is not in the log yet."""
    return [
        Recall(group, sample, group.recalled, group.recalled.samples[place_of(sample.sample)[0]])
        for group in state.in_phase(GroupPhase.REQUESTED)
        if group.recalled is not UNSET
        for sample in group.samples.values()
        if sample.phase is SamplePhase.REQUESTED
    ]

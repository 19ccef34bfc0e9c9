"""`Place`: where in which trace the span of an event is, made from the event alone."""

from __future__ import annotations

from schemas.batches import BatchSealed
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsPublished
from slime_events.core.telemetry.ids import sampled, trace_id, version_trace_id
from slime_events.core.telemetry.names import SpanName


class Place:
    """key: the span, unique in its run; parent: the key of the span that it is under. group or version: whose trace."""

    __slots__ = ("group", "key", "name", "parent", "version")

    def __init__(
        self, name: SpanName, key: str, parent: str | None = None, *, group: str = "", version: int | None = None
    ) -> None:
        self.name, self.key, self.parent = name, f"{name}/{key}", parent
        self.group, self.version = group, version

    def trace(self, run: str) -> int:
        """Its trace: that of a group, or of a weight version."""
        return trace_id(run, self.group) if self.version is None else version_trace_id(run, self.version)

    def is_sampled(self, trace: int, share: float) -> bool:
        """Groups by share; versions always, since every sampled group's trace leads to one."""
        return share > 0 and (self.version is not None or sampled(trace, share))


def place_of(event: Event) -> Place | None:
    """None for an event that ends no span."""
    match event:
        case PromptSubmitted(group=group):
            return Place(SpanName.SUBMIT, group, group=group)
        case RolloutCompleted(sample=sample, group=group):
            return Place(SpanName.GENERATE, sample, f"{SpanName.SUBMIT}/{group}", group=group)
        case RolloutFailed(sample=sample, group=group, attempt=attempt):
            return Place(SpanName.GENERATE, f"{sample}/{attempt}", f"{SpanName.SUBMIT}/{group}", group=group)
        case RewardAssigned(sample=sample, group=group) | RewardFailed(sample=sample, group=group):
            return Place(SpanName.GRADE, sample, f"{SpanName.GENERATE}/{sample}", group=group)
        case GroupAccepted(group=group) | GroupRejected(group=group):
            return Place(SpanName.DECIDE, group, f"{SpanName.SUBMIT}/{group}", group=group)
        case BatchSealed(step=step):
            return Place(SpanName.BATCH, str(step), version=step + 1)
        case StepCommitted(step=step, version=version):
            return Place(SpanName.TRAIN, str(step), f"{SpanName.BATCH}/{step}", version=version)
        case WeightsPublished(version=version, parent=parent):
            train = f"{SpanName.TRAIN}/{version - 1}" if parent is not None else None
            return Place(SpanName.PUBLISH, str(version), train, version=version)
        case WeightsActivated(version=version, engine=engine):
            return Place(SpanName.ACTIVATE, f"{version}/{engine}", f"{SpanName.PUBLISH}/{version}", version=version)
        case _:
            return None

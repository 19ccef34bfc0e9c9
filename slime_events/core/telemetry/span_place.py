"""`SpanPlace`: where the span of an event is in the traces of a run, and whether it is kept.

group's trace:    submit ─┬─ generate ─┬─ turn, tool    (one per sample; turns of an agent or a generate function)
                          │            └─ grade
                          ├─ session                    (one per attempt of an agent)
                          └─ decide
                                ⇡ link
version's trace:                batch ── train ── publish ── activate (one per engine)
"""

from typing import Annotated, NamedTuple

from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.ids import group_of
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import RolloutCompleted, RolloutFailed
from schemas.sessions import SessionSealed
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded, TurnRole
from schemas.weights import WeightsActivated, WeightsPublished
from slime_events.core.telemetry.span import sampled, trace_id

ENDING = frozenset({
    *(PromptSubmitted, RolloutCompleted, RolloutFailed, TurnRecorded, SessionSealed, RewardAssigned, RewardFailed),
    *(GroupAccepted, GroupRejected, BatchSealed, StepCommitted, WeightsPublished, WeightsActivated),
})  # fmt: skip
"""Types of the events that end a span."""
_FAILED = (RejectionCause.ROLLOUT_FAILED, RejectionCause.REWARD_FAILED, RejectionCause.FILTER_RAISED)
"""Causes of a rejection that are failures."""
_MAY_FAIL = frozenset({RolloutFailed, RewardFailed, TurnRecorded, SessionSealed})


class SpanPlace(NamedTuple):
    """The place of a span in its trace."""

    key: Annotated[str, doc("`<name>/<unique in its run>`")]
    parent: Annotated[str | None, doc("key of the parent span; None: it is a root")] = None
    group: Annotated[str, doc("owner of the trace, if that is a group")] = ""
    version: Annotated[int | None, doc("owner of the trace, if that is a weight version")] = None
    seconds: Annotated[float, doc("duration of the work that the event ends")] = 0.0

    def trace(self, run: str) -> int:
        """Return the trace id of its group, or of its weight version."""
        return trace_id(run, self.group if self.version is None else f"version/{self.version}")

    def is_kept(self, trace: int, share: float, event: Event) -> bool:
        """Return whether the span is exported. It depends on share, trace and event alone: all processes agree.

        Groups are kept by share, and versions always, because sampled groups link to them. Failures are always kept.
        With a share of 0 nothing is kept.
        """
        return share >= 1 or (share > 0 and (self.version is not None or sampled(trace, share) or _is_failure(event)))


def is_kept(run: str, event: Event, share: float) -> bool:
    """Return whether an event ends a span that is exported. share: of group traces, 0 to 1; see `SpanPlace.is_kept`."""
    if share >= 1:
        return type(event) in ENDING
    place = span_place_of(event) if share > 0 else None
    return place is not None and place.is_kept(place.trace(run), share, event)


def generate_place(sample: str, group: str, seconds: float = 0.0) -> SpanPlace:
    """Return the place of a completed rollout's span."""
    return SpanPlace(f"generate/{sample}", f"submit/{group}", group, None, seconds)


def turn_place(sample: str, index: int, role: TurnRole, seconds: float = 0.0) -> SpanPlace:
    """Return the place of the span of a turn or a tool call."""
    name = "tool" if role is TurnRole.TOOL else "turn"
    return SpanPlace(f"{name}/{sample}/{index}", f"generate/{sample}", group_of(sample), None, seconds)


def grade_place(sample: str, group: str, seconds: float = 0.0) -> SpanPlace:
    """Return the place of the span of a grading."""
    return SpanPlace(f"grade/{sample}", f"generate/{sample}", group, None, seconds)


def train_place(step: int, seconds: float = 0.0) -> SpanPlace:
    """Return the place of a step's span."""
    return SpanPlace(f"train/{step}", f"batch/{step}", version=step + 1, seconds=seconds)


def span_place_of(event: Event) -> SpanPlace | None:
    """Return the place of the span that an event ends; None if it ends no span. The frequent types come first."""
    if type(event) not in ENDING:
        return None
    match event:
        case RolloutCompleted():
            return generate_place(event.sample, event.group, event.timings.generating)
        case RewardAssigned() | RewardFailed():
            return grade_place(event.sample, event.group, event.seconds)
        case TurnRecorded():
            return turn_place(event.sample, event.index, event.role, event.seconds)
        case PromptSubmitted(group=group):
            return SpanPlace(f"submit/{group}", None, group)
        case RolloutFailed(sample=sample, group=group, attempt=attempt):
            return SpanPlace(f"generate/{sample}/{attempt}", f"submit/{group}", group)
        case SessionSealed(sample=sample, attempt=attempt, seconds=seconds):
            group = group_of(sample)
            return SpanPlace(f"session/{sample}/{attempt}", f"submit/{group}", group, seconds=seconds)
        case GroupAccepted(group=group) | GroupRejected(group=group):
            return SpanPlace(f"decide/{group}", f"submit/{group}", group)
        case BatchSealed(step=step):
            return SpanPlace(f"batch/{step}", version=step + 1)
        case StepCommitted(step=step, seconds=parts):
            return train_place(step, sum(parts.values()))
        case WeightsPublished(version=version, parent=parent):
            return SpanPlace(f"publish/{version}", None if parent is None else f"train/{version - 1}", version=version)
        case WeightsActivated(version=version, engine=engine, seconds=seconds):
            return SpanPlace(f"activate/{version}/{engine}", f"publish/{version}", version=version, seconds=seconds)
        case _:
            raise AssertionError(f"{type(event).__name__} is in ENDING and has no place")


def error_of(event: Event) -> str | None:
    """Return why the work that an event ends failed; None if it did not."""
    if type(event) not in _MAY_FAIL:
        return None
    match event:
        case RolloutFailed() | RewardFailed():
            return f"{event.kind.value}: {event.message}"
        case TurnRecorded(error=error) if error:
            return error
        case SessionSealed(exit_code=code) if code:
            return f"exit code {code}"
        case _:
            return None


def _is_failure(event: Event) -> bool:
    """Return whether an event is about failed work: the work itself, or the rejection of its group."""
    if isinstance(event, GroupRejected):
        return event.cause in _FAILED
    return error_of(event) is not None

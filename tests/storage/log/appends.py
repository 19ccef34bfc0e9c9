"""Events to store in tests: short to write, real in type."""

from __future__ import annotations

from schemas.envelope import Envelope, enclose
from schemas.event import Event
from schemas.rollouts import WeightSpan
from schemas.weights import WeightsPublished
from storage.log import Append, EventLog, Fence, Recorded, Subjects
from tests import made


def envelope_of(log: EventLog, event: Event, producer: str = "test") -> Envelope:
    return enclose(log.run, event, at=1, producer=producer)


def reward(log: EventLog, sample: str, value: float = 1.0, fence: Fence | None = None) -> Append:
    """One event there can be for a sample; its value is not part of its id."""
    event = made.assigned(sample, group="g", value=value, grader="test", grader_digest="d")
    return Append(envelope_of(log, event), fence)


def chunk(
    log: EventLog, sample: str, start: int, fence: Fence | None = None, *, tokens: int = 4, by: str = "e"
) -> Append:
    """One of many events on a sample's subject."""
    event = made.progressed(
        sample,
        range(tokens),
        start=start,
        log_probs=[-0.5] * tokens,
        spans=(WeightSpan(start, start + tokens, 0),),
        engine=by,
    )
    return Append(envelope_of(log, event, producer=by), fence)


def published(log: EventLog, version: int) -> Append:
    event = WeightsPublished(
        version=version, parent=version - 1 if version else None, url="file:///w", digest=f"{version:064x}", bytes=8
    )
    return Append(envelope_of(log, event))


def failure(log: EventLog, sample: str, fence: Fence | None = None) -> Append:
    event = made.failed(sample, group="g", message="no")
    return Append(envelope_of(log, event), fence)


async def everything(log: EventLog, start: int = 1, subject: Subjects = None) -> list[Recorded]:
    return [recorded async for recorded in log.read(start, subject)]

"""Events to store in tests: short to write, real in type."""

from __future__ import annotations

from schemas.arrays import pack_log_probs, pack_tokens
from schemas.envelope import Envelope, enclose
from schemas.event import Event
from schemas.rewards import RewardAssigned
from schemas.rollouts import FailureKind, RolloutFailed, RolloutProgressed, WeightSpan
from storage.log import Append, EventLog, Fence, Recorded, Subjects


def said(log: EventLog, event: Event, producer: str = "test") -> Envelope:
    return enclose(log.run, event, at=1, producer=producer)


def reward(log: EventLog, sample: str, value: float = 1.0, fence: Fence | None = None) -> Append:
    """One event there can be for a sample; its value is not part of its id."""
    event = RewardAssigned(sample=sample, group="g", value=value, grader="test", grader_digest="d")
    return Append(said(log, event), fence)


def chunk(
    log: EventLog, sample: str, start: int, fence: Fence | None = None, *, tokens: int = 4, by: str = "e"
) -> Append:
    """One of many events on a sample's subject."""
    event = RolloutProgressed(
        sample=sample,
        attempt=0,
        start=start,
        tokens=pack_tokens(range(tokens)),
        log_probs=pack_log_probs([-0.5] * tokens),
        spans=(WeightSpan(start, start + tokens, 0),),
        engine=by,
    )
    return Append(said(log, event, producer=by), fence)


def failure(log: EventLog, sample: str, fence: Fence | None = None) -> Append:
    event = RolloutFailed(sample=sample, group="g", attempt=0, kind=FailureKind.ENGINE, message="no", engine="e")
    return Append(said(log, event), fence)


async def everything(log: EventLog, start: int = 1, subject: Subjects = None) -> list[Recorded]:
    return [recorded async for recorded in log.read(start, subject)]

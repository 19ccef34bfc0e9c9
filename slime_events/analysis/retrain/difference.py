"""`Difference`: one thing about a step that is otherwise than the run recorded it."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from schemas.batches import BatchSealed
from schemas.steps import StepCommitted
from slime_events.loop.training.training_state import Digests


class Compared(enum.StrEnum):
    """What of a step is compared, in the order in which one follows from the other."""

    REWARDS = "rewards"
    BATCH = "batch digest"
    COMMITTED_BATCH = "batch digest of the commit"
    WEIGHTS = "weights digest"
    OPTIMIZER = "optimizer digest"


class Difference(msgspec.Struct, frozen=True):
    """recorded: what the log says; found: what came of the log now. detail: where, in words."""

    compared: Compared
    recorded: str
    found: str
    detail: str = ""

    def __str__(self) -> str:
        where = f" ({self.detail})" if self.detail else ""
        return f"{self.compared} {self.found} instead of {self.recorded}{where}"


def trained_otherwise(committed: StepCommitted, found: Digests) -> tuple[Difference, ...]:
    """What differs between a trained step and the one that was committed; nothing where it is the same, bit for bit."""
    pairs = (
        (Compared.WEIGHTS, committed.weights_digest, found.weights),
        (Compared.OPTIMIZER, committed.optimizer_digest, found.optimizer),
    )
    return tuple(Difference(what, recorded, now) for what, recorded, now in pairs if recorded != now)


def committed_otherwise(committed: StepCommitted, sealed: BatchSealed) -> tuple[Difference, ...]:
    """Whether the step was committed with another batch than the one that stands in the log."""
    if committed.batch_digest == sealed.digest:
        return ()
    return (Difference(Compared.COMMITTED_BATCH, committed.batch_digest, sealed.digest),)


def rewarded_otherwise(sealed: BatchSealed, assigned: Mapping[str, float]) -> tuple[Difference, ...]:
    """Rewards in the batch that are not those assigned to its samples; the first of them stands for all."""
    pairs = zip(sealed.samples, sealed.raw_rewards, strict=True)
    wrong = [(sample, raw) for sample, raw in pairs if assigned.get(sample, raw) != raw]
    if not wrong:
        return ()
    sample, raw = wrong[0]
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    detail = f"of sample {sample}{more}: sealed {raw:g}, assigned {assigned[sample]:g}"
    return (Difference(Compared.REWARDS, f"{raw:g}", f"{assigned[sample]:g}", detail),)

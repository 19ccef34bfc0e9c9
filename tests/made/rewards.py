"""Events of rewards, and of the decisions that follow from them."""

from __future__ import annotations

from typing import Any

from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.rewards import RewardAssigned, RewardFailed, RewardFailureKind
from tests.made.rollouts import group as group_of_sample


def assigned(sample: str = "g-s0", value: float = 1.0, **fields: Any) -> RewardAssigned:
    plain = {"group": group_of_sample(sample), "grader": "x", "grader_digest": ""}
    return RewardAssigned(sample=sample, value=value, **(plain | fields))


def reward_failed(sample: str, kind: RewardFailureKind = RewardFailureKind.RAISED, **fields: Any) -> RewardFailed:
    plain = {"group": group_of_sample(sample), "message": "late", "grader": "x", "grader_digest": ""}
    return RewardFailed(sample=sample, kind=kind, **(plain | fields))


def accepted(
    group: str = "g", samples: tuple[str, ...] = (), rewards: tuple[float, ...] = (), **fields: Any
) -> GroupAccepted:
    return GroupAccepted(group=group, samples=samples, rewards=rewards, **fields)


def rejected(group: str = "g", cause: RejectionCause = RejectionCause.FILTER, **fields: Any) -> GroupRejected:
    return GroupRejected(group=group, cause=cause, **({"reason": "r"} | fields))

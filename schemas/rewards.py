"""A reward: a grader's value for one sample."""

import enum
from typing import Any

from schemas.arrays import Array
from schemas.event import Event

MOST_REWARD = 1e15
"""Size of a reward: sums of squares of larger ones leave the range of float32, in which advantages are computed."""


def is_reward(value: float) -> bool:
    """Whether a number can be trained on: neither NaN nor beyond `MOST_REWARD`."""
    return abs(value) <= MOST_REWARD


class RewardFailureKind(enum.StrEnum):
    """Why there is no reward. invalid: the sample lacks what its grader needs, or names one that cannot be had."""

    RAISED = "raised"
    NONE = "none"
    NOT_A_NUMBER = "not_a_number"
    NO_KEY = "no_key"
    WRONG_TYPE = "wrong_type"
    TIMEOUT = "timeout"
    WORKER_DIED = "worker_died"
    OUT_OF_MEMORY = "out_of_memory"
    INVALID = "invalid"


class RewardAssigned(Event, frozen=True, kw_only=True, tag="reward.assigned"):
    """The grader, once per completed sample; or the engine, in the append that completes it, where the rule takes no
    time or the generate function graded it.

    value: what is trained on. detail: the grader's dict, if it gave one. grader: name or path; grader_digest: sha256 of
    its source. seconds: of grading. teacher_log_probs: float32 [response], natural log, what a teacher gives the
    sample's tokens, where the grader asked one.
    """

    sample: str
    group: str
    value: float
    grader: str
    grader_digest: str
    detail: dict[str, Any] | None = None
    seconds: float = 0.0
    teacher_log_probs: Array | None = None


class RewardFailed(Event, frozen=True, kw_only=True, tag="reward.failed"):
    """As `reward.assigned`, where there is no usable reward: the sample's group cannot be trained on.

    message: one sentence. grader, grader_digest, seconds: as in `reward.assigned`.
    """

    sample: str
    group: str
    kind: RewardFailureKind
    message: str
    grader: str
    grader_digest: str
    seconds: float = 0.0

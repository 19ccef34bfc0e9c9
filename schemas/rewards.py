"""A reward: a grader's value for one sample."""

import enum
from typing import Annotated, Any

from schemas.arrays import Array
from schemas.doc import doc
from schemas.event import Event

MOST_REWARD = 1e15
"""Largest absolute reward. Advantages are float32, and sums of squares of larger rewards leave its range."""


def is_reward(value: float) -> bool:
    """Return whether a number can be trained on: not NaN, and at most `MOST_REWARD` in size."""
    return abs(value) <= MOST_REWARD


class RewardFailureKind(enum.StrEnum):
    """Why there is no reward. `invalid`: the sample lacks a field that its grader needs, or names an unknown grader."""

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
    """Appended by the grader, once per completed sample.

    If the rule takes no time, or the generate function graded the sample, the engine appends the event together with
    `rollout.completed`.
    """

    sample: Annotated[str, doc("Id of the sample.")]
    group: Annotated[str, doc("Group of the sample.")]
    value: Annotated[float, doc("Reward that is trained on.")]
    grader: Annotated[str, doc("Name or path of the grader.")]
    grader_digest: Annotated[str, doc("sha256 (hex) of the grader's source.")]
    detail: Annotated[dict[str, Any] | None, doc("Dict that the grader returned, if it returned one.")] = None
    seconds: Annotated[float, doc("Seconds that grading took.")] = 0.0
    teacher_log_probs: Annotated[
        Array | None,
        doc("float32 [response]: a teacher's log-probs (nats) of the sample's tokens, if graded with one."),
    ] = None


class RewardFailed(Event, frozen=True, kw_only=True, tag="reward.failed"):
    """Appended as `reward.assigned` is, if there is no usable reward. The sample's group cannot be trained on."""

    sample: Annotated[str, doc("Id of the sample.")]
    group: Annotated[str, doc("Group of the sample.")]
    kind: Annotated[RewardFailureKind, doc("Kind of failure.")]
    message: Annotated[str, doc("Explanation, one sentence.")]
    grader: Annotated[str, doc("Name or path of the grader.")]
    grader_digest: Annotated[str, doc("sha256 (hex) of the grader's source.")]
    seconds: Annotated[float, doc("Seconds that grading took.")] = 0.0

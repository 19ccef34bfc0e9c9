"""A session: a rollout that an outside program makes through a base URL. Each of its turns is a generation."""

import enum
from typing import Annotated, Any

from schemas.doc import doc
from schemas.event import Event


class SealReason(enum.StrEnum):
    """Why a session ended: its harness sent a reward or an exit code, a limit passed (`time`, `idle`), or its
    group was decided without it (`over`).
    """

    REWARD = "reward"
    EXIT = "exit"
    TIME = "time"
    IDLE = "idle"
    OVER = "over"


class Credit(enum.StrEnum):
    """Which turns of a session are trained on.

    `all`: all paths. `last`: the last turn of each path. `leaf`: the path that ended last. `discounted`: all paths, and
    earlier turns of a path count less.
    """

    ALL = "all"
    LAST = "last"
    LEAF = "leaf"
    DISCOUNTED = "discounted"


class SessionOpened(Event, frozen=True, kw_only=True, tag="session.opened"):
    """Appended by the gateway when a harness claims a rollout.

    All events of a session are fenced on everything about its sample. The session's name is `<sample>.<attempt>`; its
    keys are derived from the name and a secret that no event holds.
    Example: sample train-0-000007-s3, attempt 0, sender team.
    """

    sample: Annotated[str, doc("Sample that the session makes.")]
    attempt: Annotated[int, doc("Attempt of the sample, from 0.")]
    group: Annotated[str, doc("Group of the sample.")]
    sender: Annotated[str, doc("Source whose token the harness has.")]
    key: Annotated[
        str, doc("The harness's Idempotency-Key, or a random one; the same key opens the same session again.")
    ]
    gateway: Annotated[str, doc("Worker id of the gateway.")] = ""

    # `sender` and `key` make two concurrent claims two events; the fence lets only one in.
    IDENTITY = ("sample", "attempt", "sender", "key")


class SessionSealed(Event, frozen=True, kw_only=True, tag="session.sealed"):
    """Appended by the gateway when a session has ended, in one append with its result.

    The result is the session's samples (`rollout.completed`) and their rewards, or why the session is not trained on
    (`rollout.failed`). Later turns are refused.
    """

    sample: Annotated[str, doc("Sample that the session makes.")]
    attempt: Annotated[int, doc("Attempt of the sample, from 0.")]
    reason: Annotated[SealReason, doc("Why the session ended.")]
    gateway: Annotated[str, doc("Worker id of the gateway.")]
    exit_code: Annotated[
        int | None, doc("Exit code of the harness's program; a code other than 0 is never trained on.")
    ] = None
    reward: Annotated[
        float | None, doc("The harness's reward; None: the run's grader grades, except leaves in `rewards`.")
    ] = None
    rewards: Annotated[dict[int, float], doc("The harness's rewards for single leaves, by turn.")] = {}
    leaves: Annotated[
        tuple[int, ...],
        doc("Turns that ended a path, the newest first, then the others from the oldest on; samples have this order."),
    ] = ()
    orphans: Annotated[
        tuple[int, ...],
        doc("Turns on no path: their answer was lost and requested again, or they were never recorded."),
    ] = ()
    credit: Annotated[Credit, doc("Which turns are trained on.")] = Credit.ALL
    metadata: Annotated[dict[str, Any], doc("The harness's metadata, JSON.")] = {}
    turns: Annotated[int, doc("Recorded turns.")] = 0
    seconds: Annotated[float, doc("Seconds since the session was opened.")] = 0.0
    discount: Annotated[float, doc("Factor per turn, if `credit` is `discounted`.")] = 1.0

    # `gateway` makes two concurrent seals two events; the fence lets only one in.
    IDENTITY = ("sample", "attempt", "gateway")

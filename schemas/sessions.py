"""A session: a rollout that a program outside makes, which knows only a base URL. Each of its turns is a generation."""

import enum
from typing import Any

from schemas.event import Event


class SealReason(enum.StrEnum):
    """What ended a session: its harness by a reward or by an exit code, its time, its idleness, or its group."""

    REWARD = "reward"
    EXIT = "exit"
    TIME = "time"
    IDLE = "idle"
    OVER = "over"


class Credit(enum.StrEnum):
    """Which turns of a session are trained on: all of its paths, the last of each path, or the path that ended last.
    discounted: all of its paths, a turn the less the earlier it is on its path.
    """

    ALL = "all"
    LAST = "last"
    LEAF = "leaf"
    DISCOUNTED = "discounted"


class SessionOpened(Event, frozen=True, kw_only=True, tag="session.opened"):
    """The gateway, for a harness that asked for a rollout to make: from here on it is nobody else's.

    Fenced on everything about the sample, as all that is said of a session. sender: the source whose token the harness
    has. key: its Idempotency-Key, else a random one; the same key opens the same session again. gateway: who appended.
    The session's name is `<sample>.<attempt>`; its keys follow from it and from a secret that is in no event.
    Example: sample train-0-000007-s3, attempt 0, sender team.
    """

    sample: str
    attempt: int
    group: str
    sender: str
    key: str
    gateway: str = ""

    # With who asked: of two that take the same rollout, the fence lets only one.
    IDENTITY = ("sample", "attempt", "sender", "key")


class SessionSealed(Event, frozen=True, kw_only=True, tag="session.sealed"):
    """The gateway, when a session has ended, in one append with what it came to: the samples that it gave
    (`rollout.completed`) and their rewards, or why it is not trained on (`rollout.failed`). A later turn is refused.

    exit_code: of the harness's program; another than 0 is never trained on. reward: as the harness gave it; None: the
    run's grader grades, or `rewards` has one for a leaf, by its turn. leaves: the turns that ended a path, in the order
    of the samples made of them. orphans: turns that nothing came of (an answer that was lost and asked for again).
    credit: the rule by which tokens are trained; discount: of `discounted`, for each turn. metadata: of the harness,
    JSON. turns: recorded. seconds: since it was opened.
    """

    sample: str
    attempt: int
    reason: SealReason
    gateway: str
    exit_code: int | None = None
    reward: float | None = None
    rewards: dict[int, float] = {}
    leaves: tuple[int, ...] = ()
    orphans: tuple[int, ...] = ()
    credit: Credit = Credit.ALL
    metadata: dict[str, Any] = {}
    turns: int = 0
    seconds: float = 0.0
    discount: float = 1.0

    # With who sealed: of two that do, the fence lets only one.
    IDENTITY = ("sample", "attempt", "gateway")

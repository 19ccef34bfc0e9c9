"""A group: all samples of one prompt, and whether they are trained on."""

import enum

from schemas.event import Event


class RejectionCause(enum.StrEnum):
    """Why a group was rejected."""

    FILTER = "filter"
    REWARD_FAILED = "reward_failed"
    ROLLOUT_FAILED = "rollout_failed"
    FILTER_RAISED = "filter_raised"
    STALE = "stale"
    NOT_RETURNED = "not_returned"


class GroupAccepted(Event, frozen=True, kw_only=True, tag="group.accepted"):
    """The conductor, when the filter keeps a group. samples: in index order; rewards: as graded, same order.

    figures: what the decision was taken on (mean, std, min, max). filter: its path, `none` where there is none;
    filter_digest: sha256 of its source. reason: as the filter gave it.
    """

    group: str
    samples: tuple[str, ...]
    rewards: tuple[float, ...]
    filter: str = "none"
    filter_digest: str = ""
    reason: str | None = None
    figures: dict[str, float] = {}


class GroupRejected(Event, frozen=True, kw_only=True, tag="group.rejected"):
    """The conductor, when a group is not trained on: by the filter, because a part of it failed, as too old, or because
    the rollout function did not return it.

    reason: one sentence. samples, rewards: as far as there are any. filter and figures: as in `group.accepted`; of
    cause stale: the group's oldest_version, the first step that could train it, how far behind that is, and the bound.
    """

    group: str
    cause: RejectionCause
    reason: str
    samples: tuple[str, ...] = ()
    rewards: tuple[float, ...] = ()
    filter: str = "none"
    filter_digest: str = ""
    figures: dict[str, float] = {}

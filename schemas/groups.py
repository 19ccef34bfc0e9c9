"""A group: all samples of one prompt, and whether they are trained on."""

import enum
from typing import Annotated

from schemas.doc import doc
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
    """Appended by the conductor when the filter keeps a group."""

    group: Annotated[str, doc("Id of the group.")]
    samples: Annotated[tuple[str, ...], doc("Samples in index order.")]
    rewards: Annotated[tuple[float, ...], doc("Rewards as graded, by sample.")]
    filter: Annotated[str, doc("Path of the filter; `none` if the run has none.")] = "none"
    filter_digest: Annotated[str, doc("sha256 (hex) of the filter's source.")] = ""
    reason: Annotated[str | None, doc("Reason that the filter gave.")] = None
    figures: Annotated[dict[str, float], doc("Statistics of the rewards (mean, std, min, max) at the decision.")] = {}


class GroupRejected(Event, frozen=True, kw_only=True, tag="group.rejected"):
    """Appended by the conductor when a group is not trained on: the filter dropped it, a sample failed, the group is
    too old, or the rollout function did not return it.
    """

    group: Annotated[str, doc("Id of the group.")]
    cause: Annotated[RejectionCause, doc("Why the group was rejected.")]
    reason: Annotated[str, doc("Explanation, one sentence.")]
    samples: Annotated[tuple[str, ...], doc("Samples in index order, as far as there are any.")] = ()
    rewards: Annotated[tuple[float, ...], doc("Rewards as graded, as far as there are any.")] = ()
    filter: Annotated[str, doc("Path of the filter; `none` if the run has none.")] = "none"
    filter_digest: Annotated[str, doc("sha256 (hex) of the filter's source.")] = ""
    figures: Annotated[
        dict[str, float],
        doc(
            "As in `group.accepted`. If the cause is `stale`: the group's `oldest_version`, the first step that could "
            "train it, its staleness at that step, and the bound."
        ),
    ] = {}

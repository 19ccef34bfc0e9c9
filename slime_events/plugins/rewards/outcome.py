"""The outcome of grading one sample: a number, or a named reason why there is none. Both are data."""

import math
from itertools import islice
from typing import Any

import msgspec

from schemas.arrays import Array
from schemas.errors import SlimeEventsError, shown_text
from schemas.event import Event
from schemas.rewards import MOST_REWARD, RewardAssigned, RewardFailed, RewardFailureKind, is_reward
from schemas.text import message_text, raised_text, repr_text
from slime_events.plugins.plain_values import CUT, plain


class Graded(msgspec.Struct, frozen=True, kw_only=True, tag="graded"):
    """A usable reward.

    value: finite, the number to train on. detail: the grader's dict where it gave one, and under `metadata` its changes
    to the sample's metadata (slime's `raw_reward`, for example). seconds: wall time of the grading. grader: name of a
    built-in or `module:function`; grader_digest: sha256 of its source. teacher_log_probs: as in `reward.assigned`.
    """

    value: float
    detail: dict[str, Any] = {}
    seconds: float = 0.0
    grader: str = ""
    grader_digest: str = ""
    teacher_log_probs: Array | None = None


class RewardFailure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """No usable reward. message: one sentence on what happened and, where something can be done, what."""

    kind: RewardFailureKind
    message: str
    seconds: float = 0.0
    grader: str = ""
    grader_digest: str = ""


Outcome = Graded | RewardFailure


def outcome_event(sample: str, group: str, outcome: Outcome) -> Event:
    """A sample's outcome as an event."""
    fields = msgspec.structs.asdict(outcome)
    if isinstance(outcome, RewardFailure):
        return RewardFailed(sample=sample, group=group, **fields)
    return RewardAssigned(sample=sample, group=group, **fields | {"detail": outcome.detail or None})


def without_detail(event: Event) -> Event:
    """A reward without what its grader returned beside it, where the log takes no more."""
    if not isinstance(event, RewardAssigned) or event.detail is None:
        return event
    return msgspec.structs.replace(event, detail={CUT: "left out: the log does not take it"})


def refused(event: Event, error: SlimeEventsError) -> Event:
    """The failure in the place of a reward that the log does not take. error: the log's."""
    if not isinstance(event, RewardAssigned | RewardFailed):
        return event
    message = shown_text(f"the log does not take what the grader returned: {error}")
    return RewardFailed(
        sample=event.sample,
        group=event.group,
        kind=RewardFailureKind.INVALID,
        message=message,
        grader=event.grader,
        grader_digest=event.grader_digest,
    )


def value_of(returned: Any, key: str | None) -> Outcome:
    """The reward in `returned`: a number, a bool, a numpy or torch scalar, or `returned[key]` of a dict.

    Whatever `returned` is, there is an outcome: an object that raises when it is looked at is a failure.
    """
    try:
        return _value_of(returned, key)
    except BaseException as error:
        return unreadable(error)


def unreadable(error: BaseException) -> RewardFailure:
    """What a grader returned, and raised when it was looked at."""
    message = f"what the grader returned cannot be read: {raised_text(error)}"
    return failure(RewardFailureKind.WRONG_TYPE, message)


def _value_of(returned: Any, key: str | None) -> Outcome:
    if type(returned) is float and is_reward(returned):  # as most are
        return Graded(value=returned)
    detail: dict[str, Any] = {}
    if isinstance(returned, dict):
        detail = plain(returned)
        if not key:
            return failure(
                RewardFailureKind.NO_KEY,
                f"the grader returned a dict with {_keys(returned)}: name the one that is the reward with --reward-key",
            )
        if key not in returned:
            return failure(
                RewardFailureKind.NO_KEY, f"the grader's dict has no --reward-key {key!r}, but {_keys(returned)}"
            )
        returned = returned[key]
    return _number(returned, detail)


def signed(outcome: Outcome, grader: str, digest: str, seconds: float = 0.0) -> Outcome:
    """The outcome with who graded, and how long it took."""
    return msgspec.structs.replace(outcome, grader=grader, grader_digest=digest, seconds=seconds)


def failure(kind: RewardFailureKind, message: str) -> RewardFailure:
    """By no grader yet. A long message is cut, and says no secret."""
    return RewardFailure(kind=kind, message=shown_text(message))


def _number(returned: Any, detail: dict[str, Any]) -> Outcome:
    if returned is None:
        return failure(RewardFailureKind.NONE, "the grader returned None")
    number = returned
    if not isinstance(returned, bool | int | float) and callable(getattr(returned, "item", None)):
        try:
            number = returned.item()
        except (ValueError, RuntimeError) as error:  # an array or tensor of several elements
            message = f"the grader returned more than one number: {message_text(error)}"
            return failure(RewardFailureKind.WRONG_TYPE, message)
    if not isinstance(number, bool | int | float):
        kind = type(returned).__name__
        what = repr_text(returned if isinstance(returned, str) else repr_text(returned, 80), 90)
        return failure(RewardFailureKind.WRONG_TYPE, f"the grader returned {kind} {what}, not a number")
    try:
        value = float(float(number))  # of a subclass, the number alone
    except OverflowError:
        value = math.inf
    if not is_reward(value):
        more = f": {MOST_REWARD:g} is the largest reward" if math.isfinite(value) else ""
        return failure(RewardFailureKind.NOT_A_NUMBER, f"the grader returned {value}{more}")
    return Graded(value=value, detail=detail)


def _keys(returned: dict[Any, Any]) -> str:
    return "the keys " + ", ".join(repr_text(key, 80) for key in islice(returned, 50)) if returned else "no keys"

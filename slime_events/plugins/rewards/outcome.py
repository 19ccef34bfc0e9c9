"""The outcome of grading one sample: a number, or a named reason for having none. Both are data."""

import math
from itertools import islice
from typing import Annotated, Any, cast

import msgspec

from schemas.arrays import Array
from schemas.doc import doc
from schemas.errors import SlimeEventsError, shown_text
from schemas.event import Event
from schemas.rewards import MOST_REWARD, RewardAssigned, RewardFailed, RewardFailureKind, is_reward
from schemas.text import message_text, raised_text, repr_text
from slime_events.plugins.plain_values import CUT, plain


class Graded(msgspec.Struct, frozen=True, kw_only=True, tag="graded"):
    value: Annotated[float, doc("Finite number to train on.")]
    detail: Annotated[
        dict[str, Any],
        doc(
            "The grader's dict if it returned one; under `metadata` its changes to the sample's metadata (slime's "
            "`raw_reward`, for example)."
        ),
    ] = {}
    seconds: Annotated[float, doc("Wall time of the grading.")] = 0.0
    grader: Annotated[str, doc("Name of a built-in, or `module:function`.")] = ""
    grader_digest: Annotated[str, doc("sha256 (hex) of its source.")] = ""
    teacher_log_probs: Annotated[Array | None, doc("See `reward.assigned`.")] = None


class RewardFailure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """No usable reward."""

    kind: RewardFailureKind
    message: Annotated[str, doc("One sentence: what happened, and what to do about it if anything.")]
    seconds: Annotated[float, doc("Wall time of the grading.")] = 0.0
    grader: Annotated[str, doc("Name of a built-in, or `module:function`.")] = ""
    grader_digest: Annotated[str, doc("sha256 (hex) of its source.")] = ""


Outcome = Graded | RewardFailure


def outcome_event(sample: str, group: str, outcome: Outcome) -> Event:
    """Return a sample's outcome as an event."""
    fields = msgspec.structs.asdict(outcome)
    if isinstance(outcome, RewardFailure):
        return RewardFailed(sample=sample, group=group, **fields)
    return RewardAssigned(sample=sample, group=group, **fields | {"detail": outcome.detail or None})


def without_detail(event: Event) -> Event:
    """Return a reward without its detail, if the log does not accept the whole event."""
    if not isinstance(event, RewardAssigned) or event.detail is None:
        return event
    return msgspec.structs.replace(event, detail={CUT: "left out: the log does not accept it"})


def refused(event: Event, error: SlimeEventsError) -> Event:
    """Return the failure that replaces a reward that the log does not accept, with the log's `error`."""
    if not isinstance(event, RewardAssigned | RewardFailed):
        return event
    message = shown_text(f"the log does not accept the grader's result: {error}")
    return RewardFailed(
        sample=event.sample,
        group=event.group,
        kind=RewardFailureKind.INVALID,
        message=message,
        grader=event.grader,
        grader_digest=event.grader_digest,
    )


def value_of(returned: object, key: str | None) -> Outcome:
    """Return the reward in `returned`: a number, a bool, a numpy or torch scalar, or `returned[key]` of a dict.

    Any object gives an outcome: one that raises when it is read is a failure.
    """
    try:
        return _value_of(returned, key)
    except BaseException as error:  # a user's object may raise anything when it is read
        return unreadable(error)


def unreadable(error: BaseException) -> RewardFailure:
    """Return the failure for a grader's result that raises when it is read."""
    message = f"the grader returned an unreadable object: {raised_text(error)}"
    return failure(RewardFailureKind.WRONG_TYPE, message)


def _value_of(returned: object, key: str | None) -> Outcome:
    if type(returned) is float and is_reward(returned):  # the common case
        return Graded(value=returned)
    detail: dict[str, Any] = {}
    if isinstance(returned, dict):
        detail = plain(returned)
        if not key:
            return failure(
                RewardFailureKind.NO_KEY,
                f"the grader returned a dict with {_keys(returned)}: name the reward's key with --reward-key",
            )
        if key not in returned:
            return failure(
                RewardFailureKind.NO_KEY, f"the grader's dict has no --reward-key {key!r}, but {_keys(returned)}"
            )
        returned = returned[key]
    return _number(returned, detail)


def signed(outcome: Outcome, grader: str, digest: str, seconds: float = 0.0) -> Outcome:
    """Return the outcome with its grader and the time that grading took."""
    return msgspec.structs.replace(outcome, grader=grader, grader_digest=digest, seconds=seconds)


def failure(kind: RewardFailureKind, message: str) -> RewardFailure:
    """Return a failure without a grader. A long message is cut, and secrets are removed."""
    return RewardFailure(kind=kind, message=shown_text(message))


def _number(returned: object, detail: dict[str, Any]) -> Outcome:
    if returned is None:
        return failure(RewardFailureKind.NONE, "the grader returned None")
    number = returned
    if not isinstance(returned, bool | int | float) and callable(getattr(returned, "item", None)):
        try:
            number = cast(Any, returned).item()
        except (ValueError, RuntimeError) as error:  # an array or tensor of several elements
            message = f"the grader returned more than one number: {message_text(error)}"
            return failure(RewardFailureKind.WRONG_TYPE, message)
    if not isinstance(number, bool | int | float):
        kind = type(returned).__name__
        what = repr_text(returned if isinstance(returned, str) else repr_text(returned, 80), 90)
        return failure(RewardFailureKind.WRONG_TYPE, f"the grader returned {kind} {what}, not a number")
    try:
        value = float(float(number))  # an instance of float itself, not of a subclass
    except OverflowError:
        value = math.inf
    if not is_reward(value):
        more = f": {MOST_REWARD:g} is the largest reward" if math.isfinite(value) else ""
        return failure(RewardFailureKind.NOT_A_NUMBER, f"the grader returned {value}{more}")
    return Graded(value=value, detail=detail)


def _keys(returned: dict[Any, Any]) -> str:
    return "the keys " + ", ".join(repr_text(key, 80) for key in islice(returned, 50)) if returned else "no keys"

"""The outcome of grading one sample: a number, or a named reason why there is none. Both are data."""

import math
from typing import Any

import msgspec

from schemas.arrays import Array
from schemas.event import Event
from schemas.redaction import shown
from schemas.rewards import RewardAssigned, RewardFailed, RewardFailureKind


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


def value_of(returned: Any, key: str | None) -> Outcome:
    """The reward in `returned`: a number, a bool, a numpy or torch scalar, or `returned[key]` of a dict."""
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
    return RewardFailure(kind=kind, message=shown(message)[:2000])


def _number(returned: Any, detail: dict[str, Any]) -> Outcome:
    if returned is None:
        return failure(RewardFailureKind.NONE, "the grader returned None")
    number = returned
    if not isinstance(returned, bool | int | float) and callable(getattr(returned, "item", None)):
        try:
            number = returned.item()
        except (ValueError, RuntimeError) as error:  # an array or tensor of several elements
            return failure(RewardFailureKind.WRONG_TYPE, f"the grader returned more than one number: {error}")
    if not isinstance(number, bool | int | float):
        kind = type(returned).__name__
        return failure(RewardFailureKind.WRONG_TYPE, f"the grader returned {kind} {str(returned)[:80]!r}, not a number")
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        return failure(RewardFailureKind.NOT_A_NUMBER, f"the grader returned {value}")
    return Graded(value=value, detail=detail)


def _keys(returned: dict[Any, Any]) -> str:
    return "the keys " + ", ".join(repr(key) for key in returned) if returned else "no keys"


def plain(value: Any, depth: int = 8) -> Any:
    """`value` as JSON can hold it: numbers, texts, lists, dicts; anything else as its `repr`, shortened."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else repr(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(value)
    if depth and isinstance(value, dict):
        return {str(key): plain(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth - 1) for item in value]
    if depth and callable(getattr(value, "tolist", None)):
        return plain(value.tolist(), depth - 1)
    return repr(value)[:200]

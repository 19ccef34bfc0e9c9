"""Which events are decisions, and when two of them are the same decision."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from schemas.arrays import Array
from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import BROUGHT, INBOX, LOADED, TRAIN
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.rollouts import RolloutRequested

Verdict = GroupAccepted | GroupRejected
ALWAYS = frozenset({GroupAccepted, GroupRejected, BatchSealed, RolloutRequested, EvalCompleted})
CODE_ONLY = frozenset({"filter", "filter_digest", "functions", "post_process", "post_process_digest"})
"""Which code decided, not what: the same verdict by another filter is the same decision."""
OUTCOMES = frozenset({"removed", "log_function", "converted_by", "columns"})
"""What functions decided that may do something else the next time: it is as recorded."""
OF_CONVERTED = frozenset({"rewards", "raw_rewards", "digest"})
"""The same in a batch whose train data a function made."""
LATER = frozenset({"place", "pass_rates"})
"""Fields that older logs do not have: nothing is decided by them, and none of them differs from what is missing."""
ROUNDED = frozenset({"figures"})
"""Computed by numpy, whose sums may differ in the last digit from one machine to another."""


def is_decision(event: Event) -> bool:
    """Whether the conductor decided it: not prompts from outside or from a dump, nor lines that are no row, nor what a
    user's rollout function came to.
    """
    if isinstance(event, RolloutRequested) and (event.function or event.purpose is Purpose.CALL):
        return False
    if isinstance(event, EvalCompleted) and event.function:
        return False
    if type(event) in ALWAYS:
        return True
    if isinstance(event, PromptSubmitted):
        return event.source.path != INBOX and event.dataset not in (LOADED, BROUGHT)
    if isinstance(event, PromptRejected):
        return event.dataset == TRAIN and event.source.offset >= 0
    return False


def about(event: Event) -> tuple[str | int, ...]:
    """What a decision is about. Two different decisions about the same thing exclude each other."""
    if isinstance(event, Verdict):
        return ("verdict", event.group)
    return (type(event).__name__, *event.identity())


def differing_fields(one: Event, other: Event) -> list[str]:
    """Names of the fields in which two decisions of one type differ."""
    recorded = CODE_ONLY | OUTCOMES
    if getattr(one, "converted_by", "") or getattr(other, "converted_by", ""):
        recorded |= OF_CONVERTED
    return [
        name
        for name in one.__struct_fields__
        if name not in recorded and not _same(name, getattr(one, name), getattr(other, name))
    ]


def is_same(one: Event, other: Event) -> bool:
    """Whether two events are one decision."""
    return one == other or (type(one) is type(other) and not differing_fields(one, other))


def _same(name: str, one: Any, other: Any) -> bool:
    if one == other:
        return True
    if name in LATER and (one in (None, {}) or other in (None, {})):
        return True
    if isinstance(one, Array) and isinstance(other, Array):
        return (one.dtype, one.n, one.digest()) == (other.dtype, other.n, other.digest())
    if name in ROUNDED and isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(
            math.isclose(value, other[key], rel_tol=1e-9, abs_tol=1e-12) for key, value in one.items()
        )
    return False


def json_values(event: Event) -> dict[str, Any]:
    """An event as JSON values; arrays by their length and digest."""
    built: dict[str, Any] = msgspec.to_builtins(event)
    arrays = {name: value for name, value in structs.asdict(event).items() if isinstance(value, Array)}
    return built | {name: {"dtype": a.dtype, "n": a.n, "sha256": a.digest()} for name, a in arrays.items()}

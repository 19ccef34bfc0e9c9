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
from schemas.rollouts import Maker, RolloutRequested

Verdict = GroupAccepted | GroupRejected
ALWAYS = frozenset({GroupAccepted, GroupRejected, BatchSealed, RolloutRequested, EvalCompleted})
CODE_ONLY = frozenset({"filter", "filter_digest", "functions", "post_process", "post_process_digest"})
"""Code that decided. The same verdict by another filter is the same decision."""
OUTCOMES = frozenset({"removed", "log_function", "converted_by", "columns"})
"""Results of functions that may return something else the next time: the recorded ones are used."""
OF_CONVERTED = frozenset({"rewards", "raw_rewards", "digest"})
"""The same, for a batch whose training data a user's function made."""
LATER = frozenset({"place", "pass_rates"})
"""Fields that older logs lack. No decision depends on them, and a missing field equals any value."""
ROUNDED = frozenset({"figures"})
"""Fields computed by numpy, whose sums may differ in the last digit between machines."""


def is_decision(event: Event) -> bool:
    """Return whether the conductor decided an event. It does not decide prompts from outside or from a dump, lines that
    are not rows, and results of a user's rollout function.
    """
    if isinstance(event, RolloutRequested) and (event.maker is Maker.FUNCTION or event.purpose is Purpose.CALL):
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
    """Return the subject of a decision. Two different decisions about one subject exclude each other."""
    if isinstance(event, Verdict):
        return ("verdict", event.group)
    return (type(event).__name__, *event.identity())


def differing_fields(decision: Event, other: Event) -> list[str]:
    """Return the names of the fields in which two decisions of one type differ."""
    recorded = CODE_ONLY | OUTCOMES
    if getattr(decision, "converted_by", "") or getattr(other, "converted_by", ""):
        recorded |= OF_CONVERTED
    return [
        name
        for name in decision.__struct_fields__
        if name not in recorded and not _same(name, getattr(decision, name), getattr(other, name))
    ]


def is_same(decision: Event, other: Event) -> bool:
    """Return whether two events are the same decision."""
    return decision == other or (type(decision) is type(other) and not differing_fields(decision, other))


def _same(name: str, value: object, other: object) -> bool:
    if value == other:
        return True
    if name in LATER and (value in (None, {}) or other in (None, {})):
        return True
    if isinstance(value, Array) and isinstance(other, Array):
        return (value.dtype, value.n, value.digest()) == (other.dtype, other.n, other.digest())
    if name in ROUNDED and isinstance(value, Mapping) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(
            math.isclose(figure, other[key], rel_tol=1e-9, abs_tol=1e-12) for key, figure in value.items()
        )
    return False


def json_values(event: Event) -> dict[str, Any]:
    """Return an event as JSON values, with length and digest of its arrays."""
    built: dict[str, Any] = msgspec.to_builtins(event)
    arrays = {name: value for name, value in structs.asdict(event).items() if isinstance(value, Array)}
    return built | {name: {"dtype": a.dtype, "n": a.n, "sha256": a.digest()} for name, a in arrays.items()}

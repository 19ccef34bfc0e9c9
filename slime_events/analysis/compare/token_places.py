"""`place_of_difference`: the first token, or log-prob, in which two rollouts of one sample differ."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from slime_events.analysis.compare.comparison import Difference, Input, Scalar
from slime_events.core.tokens.trajectory import Trajectory


def place_of_difference(difference: Difference, a: Trajectory, b: Trajectory) -> Difference:
    """Return a difference of two digests as that of the first differing token or log-prob.

    If neither tokens nor log-probs differ, the difference stays as it is.
    """
    index = _first(a.tokens, b.tokens)
    if index is not None:
        field, values = "token", (_number(a.tokens, index), _number(b.tokens, index))
    else:
        index = _first(a.log_probs, b.log_probs)
        if index is None:
            return difference
        field, values = "log_prob", (_number(a.log_probs, index), _number(b.log_probs, index))
    there = (
        Input(name="token", a=_number(a.tokens, index), b=_number(b.tokens, index)),
        Input(name="log-prob", a=_number(a.log_probs, index), b=_number(b.log_probs, index)),
        Input(name="weights of the token", a=_version(a, index), b=_version(b, index)),
    )
    return replace(difference, field=field, index=index, a=values[0], b=values[1], inputs=there + difference.inputs)


def _first(a: np.ndarray, b: np.ndarray) -> int | None:
    """Return the first index at which two arrays differ; None if they are equal. NaN is equal to NaN."""
    count = min(len(a), len(b))
    differs = (a[:count] != b[:count]) & ~((a[:count] != a[:count]) & (b[:count] != b[:count]))
    if differs.any():
        return int(differs.argmax())
    return None if len(a) == len(b) else count


def _number(values: np.ndarray, index: int) -> Scalar:
    return values[index].item() if index < len(values) else None


def _version(trajectory: Trajectory, index: int) -> int | None:
    return next((span.version for span in trajectory.spans if span.start <= index < span.end), None)

"""Rows of the event table `token_run`: the tokens of a chunk or completion, with what is recorded about each."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from schemas.arrays import Array
from schemas.rollouts import RolloutCompleted, RolloutProgressed, WeightSpan
from slime_events.analysis.query.columns import Values, offsets_of
from slime_events.analysis.query.row import Row
from slime_events.core.tokens.trajectory import Fetch

TYPES = frozenset(("rollout.progressed", "rollout.completed"))
"""Types of events that have rows."""
TOKEN_RUN = pa.schema(
    {
        "position": pa.int64(),
        "sample": pa.string(),
        "start": pa.int64(),
        "tokens": pa.list_(pa.int32()),
        "log_probs": pa.list_(pa.float32()),
        "versions": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.int8()),
        "credit": pa.list_(pa.float32()),
    }
)
"""Columns of the table. `versions` has a null between spans: a tool's output. The mask and the credit are those of the
whole response, in the completion's row only; null if every token is trained on, with weight 1.
"""


class _TokenRuns(NamedTuple):
    """Values of the rows before their arrays are fetched, [n] each."""

    position: Sequence[int]
    sample: Sequence[str]
    start: Sequence[int]
    tokens: Sequence[Array]
    log_probs: Sequence[Array]
    spans: Sequence[tuple[WeightSpan, ...]]
    loss_mask: Sequence[Array | None]
    credit: Sequence[Array | None]


def token_run_values(records: Sequence[Row]) -> list[Values]:
    """Return the values of a row per chunk and completion, in columns. Turns' chunks are left out: the completion
    repeats their tokens.
    """
    rows = []
    for row in records:
        event = row.envelope.event
        if isinstance(event, RolloutCompleted):
            last = event.loss_mask, event.credit
        elif isinstance(event, RolloutProgressed) and event.turn is None:
            last = None, None
        else:
            continue
        rows.append((row.position, event.sample, event.start, event.tokens, event.log_probs, event.spans, *last))
    return list(zip(*rows, strict=True)) if rows else [()] * len(_TokenRuns._fields)


def pack_token_runs(values: Sequence[Values], fetch: Fetch) -> list[pa.Array]:
    """Return the columns of `TOKEN_RUN`. Raises the errors of `fetch`."""
    rows = _TokenRuns(*values)

    def fetched(arrays: Sequence[Array | None], column: str) -> pa.Array:
        return _lists([None if array is None else fetch(array) for array in arrays], TOKEN_RUN.field(column).type)

    return [
        pa.array(rows.position, pa.int64()),
        pa.array(rows.sample, pa.string()),
        pa.array(rows.start, pa.int64()),
        fetched(rows.tokens, "tokens"),
        fetched(rows.log_probs, "log_probs"),
        _versions(rows.tokens, rows.start, rows.spans),
        fetched(rows.loss_mask, "loss_mask"),
        fetched(rows.credit, "credit"),
    ]


def _lists(arrays: Sequence[Any], kind: pa.ListType) -> pa.Array:
    """Return a list column of these arrays, in one copy if none is None."""
    if not arrays or any(array is None for array in arrays):
        return pa.array(arrays, kind)
    try:
        joined = np.concatenate(arrays, dtype=kind.value_type.to_pandas_dtype(), casting="safe")
    except TypeError:  # other numbers: Arrow checks each
        return pa.array(arrays, kind)
    return pa.ListArray.from_arrays(offsets_of(arrays), pa.array(joined), type=kind)


def _versions(tokens: Sequence[Array], starts: Sequence[int], spans: Sequence[tuple[WeightSpan, ...]]) -> pa.Array:
    """Return the weight version of each token, null between spans."""
    ends = np.cumsum([0, *(array.n for array in tokens)])
    versions = np.full(ends[-1], -1, np.int32)
    for start, of_row, (begin, end) in zip(starts, spans, itertools.pairwise(ends.tolist()), strict=True):
        for span in of_row:
            first, last = max(0, span.start - start), max(0, span.end - start)
            versions[min(end, begin + first) : min(end, begin + last)] = span.version
    column = pa.array(versions, mask=versions < 0)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), column, type=TOKEN_RUN.field("versions").type)

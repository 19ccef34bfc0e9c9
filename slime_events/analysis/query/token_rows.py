"""Rows of runs of tokens: the arrays that a chunk or a completion holds, as lists. Read only where a query asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.rollouts import RolloutCompleted, RolloutProgressed, WeightSpan
from slime_events.core.trajectory import Fetch
from storage.log import Recorded

TOKEN_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("sample", pa.string()),
        ("start", pa.int64()),
        ("tokens", pa.list_(pa.int32())),
        ("log_probs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
    ]
)
"""loss_mask: of the whole response, in the completion's row alone; null where all of it is trained on."""


def token_rows(records: Sequence[Recorded], fetch: Fetch) -> list[pa.Array]:
    """A row for each chunk and completion that holds tokens or a mask. A turn's chunks are passed over: the rollout's
    completion holds them again, in the response's positions."""
    said: list[tuple[int, RolloutProgressed | RolloutCompleted]] = []
    for one in records:
        event = one.envelope.event
        if isinstance(event, RolloutCompleted) or (isinstance(event, RolloutProgressed) and event.turn is None):
            said.append((one.position, event))
    masks = [
        fetch(event.loss_mask) if isinstance(event, RolloutCompleted) and event.loss_mask else None for _, event in said
    ]
    columns: list[list[Any]] = [
        [position for position, _ in said],
        [event.sample for _, event in said],
        [event.start for _, event in said],
        [fetch(event.tokens) for _, event in said],
        [fetch(event.log_probs) for _, event in said],
        [_versions(event.spans, event.start, event.tokens.n) for _, event in said],
        masks,
    ]
    return [pa.array(column, field.type) for column, field in zip(columns, TOKEN_SCHEMA, strict=True)]


def _versions(spans: tuple[WeightSpan, ...], start: int, count: int) -> list[int | None]:
    """The weight version of each of the tokens [start, start + count); None between spans, which tools have said."""
    found = np.full(count, -1)
    for span in spans:
        found[max(0, span.start - start) : max(0, span.end - start)] = span.version
    return [None if version < 0 else int(version) for version in found]

"""`Curves`: figures of a run by step as arrays, and the steps of which a page draws a point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.doc import doc

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Axis = Literal["steps", "trained_tokens", "seconds"]


class Curves(NamedTuple):
    """A value per step in each array; NaN if there is none."""

    steps: Annotated[Indices, doc("steps, ascending")]
    seconds: Annotated[Floats, doc("time of the commit since the run's first sample [s]")]
    trained_tokens: Annotated[Floats, doc("tokens trained on up to the step; NaN if the step is not committed")]
    columns: Annotated[dict[str, Floats], doc("figures of samples and groups, by column of the query")]
    speed: Annotated[Floats, doc("tokens per second")]
    metrics: Annotated[dict[str, Floats], doc("figures of the trainer, by name")]

    @classmethod
    def of(cls, bands: pa.Table, steps: pa.Table) -> Curves:
        """Return the curves from the rows of both queries, each with one row per step."""
        at, trained = (_floats(bands["at_step"]).astype(np.int64), _floats(steps["step"]).astype(np.int64))
        every = np.union1d(at, trained)

        def placed(own: Indices, values: Floats) -> Floats:
            filled = np.full(len(every), np.nan)
            filled[np.searchsorted(every, own)] = values
            return filled

        tokens, seconds = _floats(steps["tokens"]), _floats(steps["seconds"])
        with np.errstate(divide="ignore", invalid="ignore"):
            speed = np.where(seconds > 0, tokens / seconds, np.nan)
        total = np.cumsum(np.nan_to_num(tokens))
        return cls(
            steps=every,
            seconds=placed(trained, _floats(steps["at_second"])),
            trained_tokens=placed(trained, np.where(tokens > 0, total, np.nan)),
            columns={name: placed(at, _floats(bands[name])) for name in bands.column_names if name != "at_step"},
            speed=placed(trained, speed),
            metrics={name: placed(trained, values) for name, values in _by_name(steps["metrics"])},
        )

    def within(self, axis: Axis, low: float | None, high: float | None) -> Indices:
        """Return the indices of the steps that an axis has between two values, both included."""
        places = {"steps": self.steps, "trained_tokens": self.trained_tokens, "seconds": self.seconds}[axis]
        inside = np.ones(len(places), dtype=bool)
        if low is not None:
            inside &= places >= low
        if high is not None:
            inside &= places <= high
        return np.flatnonzero(inside)


def drawn(window: Indices, curves: Sequence[Floats], most: int) -> Indices:
    """Return the indices of at most `most` steps of a window.

    A longer window is divided into parts with as many steps each. Of each part the steps stay in which a curve is at
    its lowest or highest, and the first and last step of the window.
    """
    count = len(window)
    if count <= most:
        return window
    parts = max(1, (most - 2) // (2 * len(curves)))
    part = np.arange(count) * parts // count
    kept = [np.array([0, count - 1])]
    for curve in curves:
        values = curve[window]
        there = np.flatnonzero(~np.isnan(values))
        for sign in (1.0, -1.0):
            by_value = there[np.lexsort((sign * values[there], part[there]))]
            _, first = np.unique(part[by_value], return_index=True)
            kept.append(by_value[first])
    steps: Indices = window[np.unique(np.concatenate(kept))]
    return steps


def _floats(column: pa.ChunkedArray) -> Floats:
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def _by_name(column: pa.ChunkedArray) -> Iterator[tuple[str, Floats]]:
    """Yield each key of a column of maps with its value per row; of a key that a row has twice, the last one."""
    maps = column.combine_chunks()
    rows = np.repeat(np.arange(len(maps)), np.diff(np.asarray(maps.offsets)))
    begin, end = (maps.offsets[0].as_py(), maps.offsets[-1].as_py()) if len(maps) else (0, 0)
    keys = maps.keys[begin:end].dictionary_encode()
    items, codes = np.asarray(maps.items[begin:end].cast(pa.float64()), dtype=np.float64), np.asarray(keys.indices)
    for code, name in enumerate(keys.dictionary.to_pylist()):
        values = np.full(len(maps), np.nan)
        values[rows[codes == code]] = items[codes == code]
        yield name, values

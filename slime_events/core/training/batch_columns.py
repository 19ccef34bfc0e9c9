"""Per-sample columns of a batch: loss masks, credit and a user's columns override the values recorded with a sample."""

from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.arrays import Array, pack
from schemas.batches import BatchColumn, BatchSealed
from slime_events.core.tokens.trajectory import Fetch

LOSS_MASKS, TRUNCATED, CREDIT = "loss_masks", "truncated", "advantage_credit"
_INT32 = np.iinfo(np.int32)


def make_column(name: str, entries: Sequence[Any]) -> BatchColumn:
    """Return a column of these entries, one per sample: lists of numbers, or any JSON values.

    Numbers that do not fit in int32 are stored as float32. Raises TypeError or ValueError for other entries.
    """
    arrays = [np.asarray(entry) for entry in entries if isinstance(entry, list | tuple | np.ndarray)]
    if len(arrays) == len(entries) and all(array.ndim == 1 and array.dtype.kind in "biuf" for array in arrays):
        numbers = np.concatenate(arrays) if arrays else np.zeros(0)
        packed = pack(numbers, _dtype(name, numbers))
        return BatchColumn(name=name, numbers=packed, lengths=tuple(map(len, arrays)))
    return BatchColumn(name=name, values=msgspec.msgpack.decode(msgspec.msgpack.encode(list(entries))))


def _dtype(name: str, numbers: npt.NDArray[Any]) -> Literal["int8", "int32", "float32"]:
    if name == LOSS_MASKS:
        return "int8"
    if numbers.dtype.kind not in "biu":
        return "float32"
    is_small = not len(numbers) or _INT32.min <= numbers.min() <= numbers.max() <= _INT32.max
    return "int32" if is_small else "float32"


def entries_of(column: BatchColumn, fetch: Fetch) -> list[Any]:
    """Return an entry per sample of the batch, in its order: an array of numbers, or a value."""
    if column.numbers is None:
        return list(column.values or ())
    numbers = fetch(column.numbers)
    return [numbers[begin:end] for begin, end in pairwise(accumulate(column.lengths, initial=0))]


class BatchCredit:
    """Factors of the advantage of each response token in a batch."""

    def __init__(self, sealed: BatchSealed, fetch: Fetch) -> None:
        columns = [column for column in sealed.columns if column.name == CREDIT]
        self._by_sample = dict(zip(sealed.samples, entries_of(columns[0], fetch), strict=True)) if columns else {}

    def of(self, sample: str, own: Array | None, fetch: Fetch) -> npt.NDArray[np.float32] | None:
        """Return float32 [response]; None means 1. own: the factors recorded with its rollout."""
        factors: npt.NDArray[np.float32] | None = self._by_sample.get(sample)
        return fetch(own) if factors is None and own is not None else factors


class BatchMasks:
    """The response tokens that a batch trains on."""

    def __init__(self, sealed: BatchSealed, fetch: Fetch) -> None:
        columns = [column for column in sealed.columns if column.name == LOSS_MASKS]
        self._by_sample = dict(zip(sealed.samples, entries_of(columns[0], fetch), strict=True)) if columns else {}
        self._removed = frozenset(sealed.removed)

    @property
    def samples(self) -> Collection[str]:
        """The samples whose mask may differ from their rollout's."""
        return self._removed | self._by_sample.keys()

    def of(self, sample: str, own: npt.NDArray[np.int8] | None, length: int) -> npt.NDArray[np.int8]:
        """Return int8 [length], 1: trained on. own: the mask recorded with its rollout; None: all ones."""
        if sample in self._removed:
            return np.zeros(length, np.int8)
        mask = self._by_sample.get(sample, own)
        return np.ones(length, np.int8) if mask is None else mask

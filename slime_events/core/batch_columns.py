"""What a batch has of its samples in the place of what they say themselves: loss masks, and a user's own columns."""

from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.arrays import Array, pack
from schemas.batches import BatchColumn, BatchSealed
from slime_events.core.trajectory import Fetch

LOSS_MASKS, TRUNCATED, CREDIT = "loss_masks", "truncated", "advantage_credit"
_INT32 = np.iinfo(np.int32)


def make_column(name: str, entries: Sequence[Any]) -> BatchColumn:
    """The column of these entries, one for each sample: lists of numbers (those that are no int32 as float32), or any
    JSON values. Raises TypeError, ValueError for others.
    """
    arrays = [np.asarray(entry) for entry in entries if isinstance(entry, list | tuple | np.ndarray)]
    if len(arrays) == len(entries) and all(one.ndim == 1 and one.dtype.kind in "biuf" for one in arrays):
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
    """One for each sample of the batch, in its order: an array of numbers, or a value."""
    if column.numbers is None:
        return list(column.values or ())
    numbers = fetch(column.numbers)
    return [numbers[begin:end] for begin, end in pairwise(accumulate(column.lengths, initial=0))]


class BatchCredit:
    """What the advantage of each response token of its samples is multiplied by."""

    def __init__(self, sealed: BatchSealed, fetch: Fetch) -> None:
        given = [column for column in sealed.columns if column.name == CREDIT]
        self._given = dict(zip(sealed.samples, entries_of(given[0], fetch), strict=True)) if given else {}

    def of(self, sample: str, own: Array | None, fetch: Fetch) -> npt.NDArray[np.float32] | None:
        """float32 [response]; None is 1. own: of its rollout."""
        given: npt.NDArray[np.float32] | None = self._given.get(sample)
        return fetch(own) if given is None and own is not None else given


class BatchMasks:
    """Which response tokens of its samples a batch trains on."""

    def __init__(self, sealed: BatchSealed, fetch: Fetch) -> None:
        given = [column for column in sealed.columns if column.name == LOSS_MASKS]
        self._given = dict(zip(sealed.samples, entries_of(given[0], fetch), strict=True)) if given else {}
        self._removed = frozenset(sealed.removed)

    @property
    def samples(self) -> Collection[str]:
        """Those whose mask may be another than that of their rollout."""
        return self._removed | self._given.keys()

    def of(self, sample: str, own: npt.NDArray[np.int8] | None, length: int) -> npt.NDArray[np.int8]:
        """int8 [length], 1 = trained on. own: of its rollout; None is all of them."""
        if sample in self._removed:
            return np.zeros(length, np.int8)
        mask = self._given.get(sample, own)
        return np.ones(length, np.int8) if mask is None else mask

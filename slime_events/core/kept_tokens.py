"""`KeptTokens`: which tokens of the vocabulary top-p and top-k left to be drawn from, at each place of a response.

In the log they are bytes: for each place how many there are (0: all), then their ids in rising order as differences,
each number in 7-bit groups, the lowest first, the high bit set on all groups but the last (LEB128).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
GROUPS = 5
"""7-bit groups of the largest number."""


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """Of response tokens [start, start + n). packed: int8, as in the log. log_probs: float32 [n], of the distribution
    over the kept ones, natural.
    """

    start: int
    packed: npt.NDArray[np.int8]
    log_probs: npt.NDArray[np.float32]

    def unpack(self) -> tuple[Ints, Ints]:
        """(places, ids), int64 [kept tokens of all places]: an id that was kept at a place of the response. A place
        that has none kept all.
        """
        counts, ids = unpack_kept(self.packed, len(self.log_probs))
        return np.repeat(np.arange(len(counts)) + self.start, counts), ids


def pack_kept(counts: npt.NDArray[Any], ids: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    """counts: [places]; ids: of all places end to end, rising at each."""
    starts = np.cumsum(counts) - counts
    steps = np.diff(ids.astype(np.int64), prepend=0)
    first = starts[counts > 0]
    steps[first] = ids[first]
    numbers: Ints = np.insert(steps, starts, counts)
    sizes: Ints = np.ones(len(numbers), np.int64)
    for group in range(1, GROUPS):
        sizes += numbers >> (7 * group) > 0
    ends = np.cumsum(sizes)
    packed = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for group in range(GROUPS):
        has = sizes > group
        more = np.where(sizes[has] > group + 1, 0x80, 0)
        packed[(ends - sizes)[has] + group] = ((numbers[has] >> (7 * group)) & 0x7F) | more
    return packed.view(np.int8)


def unpack_kept(packed: npt.NDArray[np.int8], places: int) -> tuple[Ints, Ints]:
    """(counts, ids) of `pack_kept`."""
    data = packed.view(np.uint8).astype(np.int64)
    ends = np.flatnonzero(data < 0x80) + 1
    begins = np.concatenate([[0], ends])[:-1]
    shifts = np.arange(len(data)) - np.repeat(begins, ends - begins)
    numbers = np.add.reduceat((data & 0x7F) << (7 * shifts), begins) if len(begins) else data
    counts, place = np.zeros(places, np.int64), 0
    is_count = np.zeros(len(numbers), np.bool_)
    for index in range(places):
        counts[index], is_count[place] = numbers[place], True
        place += 1 + int(counts[index])
    steps = numbers[~is_count]
    sums = np.cumsum(steps)
    starts = (np.cumsum(counts) - counts)[counts > 0]
    before = sums[starts] - steps[starts]
    return counts, sums - np.repeat(before, counts[counts > 0])

"""`KeptTokens`: the vocabulary that top-p and top-k leave to sample from, at each position of a response.

Wire format, per position: the number of kept ids (0: all), then the ids in ascending order as differences. Each number
is LEB128: 7-bit groups, lowest first, with the high bit set on all groups but the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from schemas.doc import doc

Ints = npt.NDArray[np.int64]
GROUPS = 5
"""The most 7-bit groups of a number."""


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """The kept vocabulary of response tokens [start, start + n)."""

    start: Annotated[int, doc("index of the first response token")]
    packed: Annotated[npt.NDArray[np.int8], doc("kept ids of each token, in the wire format")]
    log_probs: Annotated[npt.NDArray[np.float32], doc("float32 [n], natural log, over the kept vocabulary")]

    def unpack(self) -> tuple[Ints, Ints]:
        """Return (positions, ids), int64 [all kept ids]: each kept id with its response position.

        A position without ids kept the whole vocabulary.
        """
        counts, ids = unpack_kept(self.packed, len(self.log_probs))
        return np.repeat(np.arange(len(counts)) + self.start, counts), ids


def pack_kept(counts: npt.NDArray[np.integer[Any]], ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int8]:
    """Return the wire format. counts: [positions]; ids: of all positions in order, ascending at each position."""
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
    """Return the (counts, ids) that `pack_kept` packed."""
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

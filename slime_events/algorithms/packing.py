"""Division of samples into optimizer steps, micro batches and data parallel ranks. Pure Python, needs no torch.

Packing comes first, distribution second: the samples of an optimizer step are packed once, the number of micro batches
is raised to a multiple of the ranks if there are enough samples, and then each micro batch is assigned to a rank.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from schemas.errors import TrainerError


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    indices: Annotated[tuple[int, ...], doc("Samples, as indices into the batch, in batch order.")]
    rollouts: Annotated[int, doc("Number of distinct rollouts.")]


def optimizer_steps(
    rollouts: Sequence[Hashable], global_batch_size: int | None, steps: int | None = None
) -> list[OptimizerStep]:
    """Cut a batch into optimizer steps of `global_batch_size` rollouts, or into `steps` of them.

    `rollouts[i]` identifies the rollout of sample i; fan-out siblings share a rollout and are trained together. As in
    slime, rollouts that do not fill a step are left over. Raises TrainerError if no step is filled.
    """
    members: dict[Hashable, list[int]] = {}
    for index, rollout in enumerate(rollouts):
        members.setdefault(rollout, []).append(index)
    groups = list(members.values())
    size = global_batch_size or len(groups) // (steps or 1)
    count = len(groups) // size if size else 0
    if steps:
        count = min(count, steps)
    if count == 0:
        raise TrainerError(
            f"the batch has {len(groups)} rollouts, one optimizer step takes {size or 'at least 1'} "
            f"(global-batch-size {global_batch_size}, num-steps-per-rollout {steps})"
        )
    chunks = [groups[step * size : (step + 1) * size] for step in range(count)]
    return [OptimizerStep(tuple(sorted(index for group in chunk for index in group)), size) for chunk in chunks]


@dataclass(frozen=True, slots=True)
class PackingRule:
    max_tokens: Annotated[int | None, doc("Tokens of a micro batch; None packs `micro_batch_size` samples.")] = None
    micro_batch_size: Annotated[int, doc("Samples of a micro batch if `max_tokens` is None.")] = 1
    ranks: Annotated[int, doc("Data parallel ranks.")] = 1
    balance: Annotated[bool, doc("Balance tokens over ranks; if off, deal micro batches in turn.")] = False
    multiple: Annotated[int, doc("A rank's number of micro batches is a multiple (interleaved pipeline stages).")] = 1


def micro_batches(
    lengths: Sequence[int], rule: PackingRule, work: Sequence[int] | None = None
) -> list[list[list[int]]]:
    """Return each rank's micro batches, as indices into `lengths` (tokens per sample).

    Every rank gets the same number, unless there are too few samples or micro batches have a fixed size. With `work`
    (a weight per sample), `max_tokens` sets only the number of micro batches: their work is balanced, and a micro batch
    may have more tokens than `max_tokens`.
    """
    if rule.max_tokens is not None:
        bins = first_fit(lengths, rule.max_tokens)
        unit = rule.ranks * rule.multiple
        count = -(-len(bins) // unit) * unit
        if work:
            bins = [members for members in karmarkar_karp(work, min(count, len(work))) if members]
        bins = split_largest(bins, count, work or lengths)
    else:
        size = rule.micro_batch_size
        bins = [list(range(start, min(start + size, len(lengths)))) for start in range(0, len(lengths), size)]
    if rule.balance and len(bins) >= rule.ranks:
        weights = [sum((work or lengths)[index] for index in members) for members in bins]
        dealt = karmarkar_karp(weights, rule.ranks, equal_size=len(bins) % rule.ranks == 0)
        return [[bins[place] for place in places] for places in dealt]
    return [bins[rank :: rule.ranks] for rank in range(rule.ranks)]


def first_fit(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Put each sample into the first micro batch with room; return the indices per micro batch.

    A sample longer than `max_tokens` is alone in its micro batch.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for index, length in enumerate(lengths):
        place = next((place for place, free in enumerate(room) if length <= free), None)
        if place is None:
            bins.append([index])
            room.append(max_tokens - length)
        else:
            bins[place].append(index)
            room[place] -= length
    return bins


def split_largest(bins: Sequence[Sequence[int]], count: int, lengths: Sequence[int]) -> list[list[int]]:
    """Halve the heaviest bin of two or more samples until there are `count` bins or one sample per bin.

    One half keeps the bin's position, the other half is appended. Ties and order are slime's
    (`expand_bins_by_splitting`).
    """
    result = [list(samples) for samples in bins]
    while len(result) < count:
        weights = [(sum(lengths[index] for index in bin_), place) for place, bin_ in enumerate(result) if len(bin_) > 1]
        if not weights:
            break
        _, place = max(weights)
        halves: tuple[list[int], list[int]] = ([], [])
        sums = [0, 0]
        for index in sorted(result[place], key=lambda index: -lengths[index]):
            lighter = int(sums[0] > sums[1])
            halves[lighter].append(index)
            sums[lighter] += lengths[index]
        result[place] = halves[0]
        result.append(halves[1])
    return result


Part = tuple[float, int, tuple[int, ...]]
"""Sum, number of items and items of a part; compared in this order, so that ties are broken the same way everywhere."""


def karmarkar_karp(weights: Sequence[float], k: int, *, equal_size: bool = False) -> list[list[int]]:
    """Split numbers into k parts with nearly equal sums (Karmarkar and Karp, 1982); ties are broken as in slime.

    Return k lists of ascending indices, the heaviest list first; with `equal_size`, all lists have the same length.
    Raises TrainerError if there are fewer than k items or, with `equal_size`, if their number is not a multiple of k.
    """
    if k < 1 or len(weights) < k:
        raise TrainerError(f"{len(weights)} items cannot fill {k} parts: every data parallel rank needs at least one")
    if equal_size and len(weights) % k:
        raise TrainerError(f"{len(weights)} items cannot be split into {k} parts of equal size")
    solutions: list[list[Part]]
    if equal_size:
        # A partial solution per k neighbors in weight, with an item in each part: every later union keeps sizes equal.
        order = sorted(range(len(weights)), key=lambda index: (weights[index], index))
        solutions = [[(weights[i], 1, (i,)) for i in order[start : start + k]] for start in range(0, len(order), k)]
    else:
        # A partial solution per item: the item in one part, k - 1 empty parts.
        solutions = [[(weight, 1, (index,)), *[(0.0, 0, ())] * (k - 1)] for index, weight in enumerate(weights)]
    heap = [_Partial(parts) for parts in solutions]
    heapq.heapify(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap).parts, heapq.heappop(heap).parts
        joined = [(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in zip(first, reversed(second), strict=True)]
        heapq.heappush(heap, _Partial(joined))
    return [sorted(items) for _, _, items in heap[0].parts]


class _Partial:
    """Heap entry of a partial solution, ordered by largest spread, then by largest first part."""

    __slots__ = ("order", "parts")

    def __init__(self, parts: list[Part]) -> None:
        self.parts = sorted(parts, reverse=True)
        self.order = (self.parts[0][0] - self.parts[-1][0], self.parts[0])

    def __lt__(self, other: _Partial) -> bool:
        return self.order > other.order

"""Samples into optimizer steps, micro batches, and onto data parallel ranks. Pure Python, needs no torch.

Pack first, distribute second: the samples of an optimizer step are packed once, the number of micro batches is brought
to a multiple of the ranks where there are samples enough, and only then is each given to a rank.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from schemas.errors import TrainerError


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """indices: its samples, into the batch, in batch order. rollouts: how many distinct rollouts they are."""

    indices: tuple[int, ...]
    rollouts: int


def optimizer_steps(
    rollouts: Sequence[Hashable], global_batch_size: int | None, steps: int | None = None
) -> list[OptimizerStep]:
    """Cut a batch into optimizer steps of `global_batch_size` rollouts, or into `steps` of them.

    rollouts[i]: of sample i; fan-out siblings share one and are trained together. Rollouts that do not fill a step are
    left over, as in slime. Raises TrainerError when not one step is filled.
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
    """max_tokens: tokens of one micro batch; None packs `micro_batch_size` samples each instead. ranks: data parallel
    ones. balance: even out tokens over ranks, else deal in turn. multiple: micro batches of a rank come in multiples
    of it, which interleaved pipeline stages need.
    """

    max_tokens: int | None = None
    micro_batch_size: int = 1
    ranks: int = 1
    balance: bool = False
    multiple: int = 1


def micro_batches(
    lengths: Sequence[int], rule: PackingRule, work: Sequence[int] | None = None
) -> list[list[list[int]]]:
    """Of each rank its micro batches, as indices into `lengths` (tokens per sample).

    Every rank gets equally many, unless samples are too few or micro batches have a fixed size. work: of each sample;
    as many micro batches as `max_tokens` asks for then have equal work, and one may have more tokens than that.
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
    """Indices by micro batch: each sample goes into the first that still has room; a longer one is alone."""
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
    """As many bins as `count`, or as there are samples: the heaviest with two samples or more is halved until there
    are. Half of it takes its place, the other goes to the end. Ties and order are slime's (`expand_bins_by_splitting`).
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
"""Sum, number of items and items of one part; compared in that order, so that ties fall the same way everywhere."""


def karmarkar_karp(weights: Sequence[float], k: int, *, equal_size: bool = False) -> list[list[int]]:
    """Split numbers into k parts with nearly equal sums (Karmarkar and Karp, 1982); ties fall as in slime.

    `k` lists of indices, the heaviest first, each ascending; with `equal_size` all of one length.
    Raises TrainerError where that cannot be: fewer items than parts, or a number that k does not divide.
    """
    if k < 1 or len(weights) < k:
        raise TrainerError(f"{len(weights)} items cannot fill {k} parts: give every data parallel rank at least one")
    if equal_size and len(weights) % k:
        raise TrainerError(f"{len(weights)} items cannot be split into {k} parts of one size")
    solutions: list[list[Part]]
    if equal_size:
        # A partial solution per k neighbours in weight, an item in each part: every later union keeps sizes equal.
        order = sorted(range(len(weights)), key=lambda index: (weights[index], index))
        solutions = [[(weights[i], 1, (i,)) for i in order[start : start + k]] for start in range(0, len(order), k)]
    else:
        # One per item: it alone against k - 1 empty parts.
        solutions = [[(weight, 1, (index,)), *[(0.0, 0, ())] * (k - 1)] for index, weight in enumerate(weights)]
    heap = [_Partial(parts) for parts in solutions]
    heapq.heapify(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap).parts, heapq.heappop(heap).parts
        joined = [(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in zip(first, reversed(second), strict=True)]
        heapq.heappush(heap, _Partial(joined))
    return [sorted(items) for _, _, items in heap[0].parts]


class _Partial:
    """Heap entry of a partial solution: the largest spread comes first, the largest first part among equals."""

    __slots__ = ("order", "parts")

    def __init__(self, parts: list[Part]) -> None:
        self.parts = sorted(parts, reverse=True)
        self.order = (self.parts[0][0] - self.parts[-1][0], self.parts[0])

    def __lt__(self, other: _Partial) -> bool:
        return self.order > other.order

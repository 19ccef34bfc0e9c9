"""Karmarkar-Karp (1982): split numbers into k parts with nearly equal sums. Pure Python, needs no torch."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from schemas.errors import TrainerError

Part = tuple[float, int, tuple[int, ...]]
"""Sum, number of items and items of one part; compared in that order, so that ties fall the same way everywhere."""


def karmarkar_karp(weights: Sequence[float], k: int, *, equal_size: bool = False) -> list[list[int]]:
    """`k` lists of indices, the heaviest first, each ascending; with `equal_size` all of one length.

    Raises TrainerError where that cannot be: fewer items than parts, or a number that k does not divide.
    """
    if k < 1 or len(weights) < k:
        raise TrainerError(f"{len(weights)} items cannot fill {k} parts: give every data parallel rank at least one")
    if equal_size and len(weights) % k:
        raise TrainerError(f"{len(weights)} items cannot be split into {k} parts of one size")
    heap = [_entry(parts) for parts in (_runs if equal_size else _singles)(weights, k)]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, _, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        heapq.heappush(heap, _entry([_join(a, b) for a, b in zip(first, reversed(second), strict=True)]))
    return [sorted(items) for _, _, items in heap[0][2]]


def _singles(weights: Sequence[float], k: int) -> list[list[Part]]:
    """One partial solution per item: it alone against k - 1 empty parts."""
    return [[(weight, 1, (index,)), *[(0.0, 0, ())] * (k - 1)] for index, weight in enumerate(weights)]


def _runs(weights: Sequence[float], k: int) -> list[list[Part]]:
    """One partial solution per k neighbours in weight, an item in each part: every later union keeps sizes equal."""
    order = sorted(range(len(weights)), key=lambda index: (weights[index], index))
    return [[(weights[i], 1, (i,)) for i in order[start : start + k]] for start in range(0, len(order), k)]


def _entry(parts: list[Part]) -> tuple[float, tuple[float, ...], list[Part]]:
    """Heap entry of a partial solution: the largest spread comes first, heavier parts first among equals."""
    parts = sorted(parts, reverse=True)
    return parts[-1][0] - parts[0][0], tuple(-part[0] for part in parts), parts


def _join(a: Part, b: Part) -> Part:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]

"""A tree of token sequences that stores each shared prefix once. Pure, needs no torch.

In sorted order, each sequence is a neighbor of the sequence with which it shares its longest prefix (suffix arrays use
the same fact). One number per sequence therefore describes the whole tree: how many leading tokens the sequence shares
with the sequence before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np
import numpy.typing as npt

from schemas.doc import doc

Tokens = npt.NDArray[np.integer]
Places = npt.NDArray[np.int64]
Pays = Callable[[int, int], bool]
"""(shared tokens, tokens of the sequence) -> whether sharing the prefix is less work."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A sequence in sorted order."""

    index: Annotated[int, doc("Index of the sequence.")]
    shared: Annotated[int, doc("Leading tokens shared with the branch before this one; 0 for a root.")]


Size = Callable[[Branch], int]
"""Tokens that a branch contributes to a micro batch."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """A tree laid out as one flat token array. Each sequence's own tokens are adjacent, in the order of sequences."""

    tokens: Annotated[Tokens, doc("[places] tokens; a shared token occurs once")]
    positions: Annotated[Places, doc("int64 [places]: position of each token in its sequences")]
    paths: Annotated[tuple[Places, ...], doc("per sequence: places of its tokens, int64 [tokens]")]
    shared: Annotated[tuple[int, ...], doc("per sequence: leading tokens that belong to an earlier branch")]


def branches(sequences: Sequence[Tokens], pays: Pays) -> list[Branch]:
    """Return a branch per sequence, sorted so that sequences with a common prefix are adjacent.

    All sequences have the same dtype.
    """
    order = sorted(range(len(sequences)), key=lambda index: sequences[index].tobytes())
    tree = [Branch(order[0], 0)] if order else []
    for before, index in pairwise(order):
        shared = common_prefix(sequences[before], sequences[index])
        is_worth_it = shared > 0 and pays(shared, len(sequences[index]))
        tree.append(Branch(index, shared if is_worth_it else 0))
    return tree


def common_prefix(left: Tokens, right: Tokens) -> int:
    """Return how many leading tokens are equal."""
    size = min(len(left), len(right))
    differ = np.flatnonzero(left[:size] != right[:size])
    return int(differ[0]) if len(differ) else size


def families(tree: Sequence[Branch], size: Size, limit: int, *, least: int = 1) -> list[list[Branch]]:
    """Return the branches cut into families: a root with its descendants. Families are ordered by first sequence.

    If a family would exceed `limit`, a new family begins and repeats the prefix. If there are fewer than `least`
    families, the largest is halved until there are enough or each family has one sequence.
    """
    families: list[list[Branch]] = []
    room = 0
    for branch in tree:
        if branch.shared and size(branch) <= room:
            families[-1].append(branch)
            room -= size(branch)
        else:
            families.append([Branch(branch.index, 0)])
            room = limit - size(families[-1][0])
    while len(families) < min(least, len(tree)):
        largest = max((family for family in families if len(family) > 1), key=lambda family: sum(map(size, family)))
        half = len(largest) // 2
        families.append([Branch(largest[half].index, 0), *largest[half + 1 :]])
        del largest[half:]
    return sorted(families, key=lambda family: min(branch.index for branch in family))


def lay_out(sequences: Sequence[Tokens], tree: Sequence[Branch]) -> PrefixTree:
    """Return the layout of a tree of `branches`, or of a single family."""
    shared = [0] * len(sequences)
    for branch in tree:
        shared[branch.index] = branch.shared
    own = np.array([len(sequence) - count for sequence, count in zip(sequences, shared, strict=True)])
    starts = np.cumsum(own) - own
    paths: dict[int, Places] = {}
    path: Places = np.zeros(0, np.int64)
    for branch in tree:
        tail = np.arange(starts[branch.index], starts[branch.index] + own[branch.index])
        path = paths[branch.index] = np.concatenate([path[: branch.shared], tail])
    tails = list(zip(sequences, shared, strict=True))
    return PrefixTree(
        tokens=np.concatenate([sequence[count:] for sequence, count in tails]),
        positions=np.concatenate([np.arange(count, len(sequence)) for sequence, count in tails]),
        paths=tuple(paths[index] for index in range(len(sequences))),
        shared=tuple(shared),
    )

"""Sequences that begin alike as a tree, in which a shared prefix stands once. Pure, needs no torch.

Where sequences are sorted, each stands next to the one that it shares most with (as suffix arrays use it). So the whole
tree is one number a sequence: how many of its first tokens are those of the sequence before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.integer]
Places = npt.NDArray[np.int64]
Pays = Callable[[int, int], bool]
"""(shared tokens, tokens of the sequence): whether it is less work to share them."""


@dataclass(frozen=True, slots=True)
class Branch:
    """index: of a sequence. shared: how many of its first tokens are those of the branch before it; 0: it is a root."""

    index: int
    shared: int


Size = Callable[[Branch], int]
"""Tokens that a branch counts for in a micro batch."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """tokens: [places], each shared one once. positions: int64 [places], of each in every sequence that it is of.
    paths: of each sequence the places of its tokens, int64 [tokens]. shared: of each how many of its first tokens
    another one brought; its own stand side by side behind them, in the order of the sequences.
    """

    tokens: Tokens
    positions: Places
    paths: tuple[Places, ...]
    shared: tuple[int, ...]


def branches(sequences: Sequence[Tokens], pays: Pays) -> list[Branch]:
    """One for each sequence, so sorted that those that begin alike stand together. sequences: of one dtype."""
    order = sorted(range(len(sequences)), key=lambda index: sequences[index].tobytes())
    found = [Branch(order[0], 0)] if order else []
    for before, index in pairwise(order):
        shared = common_prefix(sequences[before], sequences[index])
        is_worth_it = shared > 0 and pays(shared, len(sequences[index]))
        found.append(Branch(index, shared if is_worth_it else 0))
    return found


def common_prefix(one: Tokens, other: Tokens) -> int:
    """Tokens that both begin with."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size


def families(tree: Sequence[Branch], size: Size, limit: int, *, least: int = 1) -> list[list[Branch]]:
    """The branches cut into roots with what hangs on them, ordered by their first sequence.

    A family that would be larger than `limit` goes on as another one, with the prefix once more. Where there are fewer
    than `least`, the largest is halved until there are, or until each has one sequence.
    """
    found: list[list[Branch]] = []
    room = 0
    for branch in tree:
        if branch.shared and size(branch) <= room:
            found[-1].append(branch)
            room -= size(branch)
        else:
            found.append([Branch(branch.index, 0)])
            room = limit - size(found[-1][0])
    while len(found) < min(least, len(tree)):
        largest = max((family for family in found if len(family) > 1), key=lambda family: sum(map(size, family)))
        half = len(largest) // 2
        found.append([Branch(largest[half].index, 0), *largest[half + 1 :]])
        del largest[half:]
    return sorted(found, key=lambda family: min(branch.index for branch in family))


def lay_out(sequences: Sequence[Tokens], tree: Sequence[Branch]) -> PrefixTree:
    """The tree of `branches`, or of one of its families alone."""
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

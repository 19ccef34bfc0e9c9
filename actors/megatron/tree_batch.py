"""`pack_tree`: samples that begin alike in one micro batch, with each shared prefix once (slime_events.algorithms).

A token looks at its ancestors alone: what a sample has of its own is laid out as queries, and the whole path down to
there as keys. So every sample gets the log-probs, and gives the gradient, that it would alone, within rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from actors.megatron.attention import Ints, PackedSequences, alike, lay_out
from actors.megatron.forward import MicroBatch, kept_of_all, pack
from slime_events.algorithms import prefix_tree
from slime_events.algorithms.prefix_tree import Pays, PrefixTree
from slime_events.core.train_batch import TrainSample


@dataclass
class TreeSequences(PackedSequences):
    """The sequences of `grids` are what samples have of their own. There are no `ends`: a mask says what is seen.

    to_keys: int64 [key slots], the packed token of each key of all grids end to end (any token in a padding slot).
    key_grids: (sequences, longest path) of each grid. seen: its mask, None for a grid of roots. position_ids: int64
    [tokens], what RoPE turns each token by.
    """

    to_keys: Tensor | None = None
    key_grids: tuple[tuple[int, int], ...] = ()
    seen: tuple[Tensor | None, ...] = ()
    position_ids: Tensor | None = None

    @classmethod
    def of_tree(cls, tree: PrefixTree, rows: Tensor, device: torch.device) -> TreeSequences:
        """Parameters for a tree of at least one sequence. Megatron is told of a single sequence, so that it takes the
        RoPE of each token as it is given.
        """
        ends, shared = np.array([len(path) for path in tree.paths]), np.array(tree.shared)
        own = ends - shared
        members = _grids(own, ends)
        grids, to_grid, from_grid = lay_out(members, np.cumsum(own) - own, own)
        keys, key_grids, seen = [], [], list[Tensor | None]()
        for chosen, (count, longest) in zip(members, grids, strict=True):
            column = np.arange(ends[chosen].max())
            keys += [tree.paths[index][np.minimum(column, ends[index] - 1)] for index in chosen]
            key_grids.append((count, len(column)))
            last_seen = shared[chosen, None] + np.arange(longest)
            seen.append(_mask(column, last_seen).to(device) if shared[chosen].any() else None)
        tokens = len(tree.tokens)
        whole = torch.tensor([0, tokens], dtype=torch.int32)
        return cls(
            qkv_format="thd",
            cu_seqlens_q=whole,
            cu_seqlens_kv=whole,
            max_seqlen_q=int(ends.max()),
            max_seqlen_kv=int(ends.max()),
            grids=grids,
            to_grid=torch.from_numpy(to_grid).to(device),
            from_grid=torch.from_numpy(from_grid).to(device),
            rows=rows,
            to_keys=torch.from_numpy(np.concatenate(keys)).to(device),
            key_grids=tuple(key_grids),
            seen=tuple(seen),
            position_ids=torch.from_numpy(tree.positions).to(device),
        )

    @property
    def masks(self) -> Sequence[Tensor | None]:
        """See `PackedSequences`. Keys of padding come last, where no query of a token looks."""
        return self.seen

    def keys(self, tokens: Tensor) -> Sequence[Tensor]:
        """Of each grid [sequences, longest path, groups, size]. The gradient of a token is the sum over all paths that
        it is on, always in one order: that of an embedding.
        """
        slots = [count * longest for count, longest in self.key_grids]
        laid = F.embedding(self.to_keys, tokens.flatten(1))  # type: ignore[arg-type]  # None in Megatron's alone
        parts = torch.split(laid, slots)
        return [part.view(*grid, *tokens.shape[1:]) for grid, part in zip(self.key_grids, parts, strict=True)]


def _mask(column: Ints, last_seen: Ints) -> Tensor:
    """Float32 [sequences, 1, queries, keys], added to scores. Made once for all layers, each of which would keep one of
    its own of a mask of bools.
    """
    hidden = torch.from_numpy(column > last_seen[:, None, :, None])
    return torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def _grids(own: Ints, ends: Ints) -> list[Ints]:
    """Sequences with tokens of their own, those in one grid that are alike in these and in the whole path; roots have
    grids of their own, which need no mask.
    """
    found: list[Ints] = []
    for chosen in (np.flatnonzero(own == ends), np.flatnonzero((own > 0) & (own < ends))):
        for group in alike(own[chosen]):
            same = chosen[group]
            found += [same[part] for part in alike(ends[same])]
    return found


def pack_tree(samples: Sequence[TrainSample], device: torch.device, pays: Pays) -> MicroBatch:
    """As `pack`, which it is where no two samples share a prefix that pays. A target that samples share is predicted
    once, except where tokens were drawn from a part of the vocabulary: that part may be another for each.
    """
    sequences = [sample.tokens for sample in samples]
    branches = prefix_tree.branches(sequences, pays)
    if not any(branch.shared for branch in branches):
        return pack(samples, device)
    tree = prefix_tree.lay_out(sequences, branches)
    responses = [sample.response_length for sample in samples]
    ends = list(zip(tree.paths, responses, strict=True))
    # The token at a place is predicted at the place before it on its path, which is one for all paths.
    rows = np.concatenate([path[-size - 1 : -1] for path, size in ends])
    targets, targets_of = np.concatenate([path[-size:] for path, size in ends]), None
    kept = kept_of_all(samples, device)
    if kept is None:
        targets, first, inverse = np.unique(targets, return_index=True, return_inverse=True)
        rows, targets_of = rows[first], torch.from_numpy(inverse).to(device)
    tokens = tree.tokens.astype(np.int64)
    on_device = [torch.from_numpy(array).to(device) for array in (tokens, tree.positions, rows, tokens[targets])]
    token_ids, position_ids, packed_rows, wanted = on_device
    packed = TreeSequences.of_tree(tree, packed_rows, device)
    return MicroBatch(token_ids[None], position_ids[None], packed, wanted, responses, kept, targets_of)

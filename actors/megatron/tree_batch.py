"""`pack_tree`: pack samples with common prefixes to a micro batch that has each prefix once (slime_events.algorithms).

A token sees only its ancestors: a sample's own tokens are laid out as queries, and the whole path to them as keys. Up
to rounding, each sample therefore has the same log-probs and gradient as in a batch without sharing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from actors.megatron.attention import Ints, PackedSequences, alike, lay_out, mask_of
from actors.megatron.forward import Packed, kept_of_all, pack
from actors.megatron.voters import Voters
from actors.step.micro_batch import MicroBatch
from schemas.doc import doc
from slime_events.algorithms import prefix_tree
from slime_events.algorithms.prefix_tree import Branch, Pays, PrefixTree
from slime_events.core.training.train_batch import TrainSample


@dataclass
class TreeSequences(PackedSequences):
    """Layouts of a prefix tree. Grids contain the samples' own tokens. `ends` is None: masks define what is seen."""

    to_keys: Annotated[
        Tensor | None, doc("int64 [key slots of all grids]: packed token of each key; any token for padding")
    ] = None
    key_grids: Annotated[tuple[tuple[int, int], ...], doc("(sequences, longest path) of each grid")] = ()
    seen: Annotated[tuple[Tensor | None, ...], doc("mask of each grid; None for a grid of roots")] = ()

    @classmethod
    def of_tree(cls, tree: PrefixTree, rows: Tensor, device: torch.device) -> TreeSequences:
        """Return parameters for a tree of at least one sequence.

        For Megatron the tree is a single sequence, so that Megatron uses each token's RoPE unchanged.
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
            seen.append(mask_of(column, last_seen).to(device) if shared[chosen].any() else None)
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
        """See `PackedSequences`. Padding keys come last, where no token's query sees them."""
        return self.seen

    def keys(self, tokens: Tensor) -> Sequence[Tensor]:
        """Lay out keys or values as grids, [sequences, longest path, groups, size] each.

        A token's gradient is the sum over all its paths, always in the same order, as for an embedding.
        """
        slots = [count * longest for count, longest in self.key_grids]
        laid = F.embedding(self.to_keys, tokens.flatten(1))  # type: ignore[arg-type]  # None in Megatron's alone
        parts = torch.split(laid, slots)
        return [part.view(*grid, *tokens.shape[1:]) for grid, part in zip(self.key_grids, parts, strict=True)]


def _grids(own: Ints, ends: Ints) -> list[Ints]:
    """Group the sequences that have own tokens into grids with a similar number of own tokens and path tokens.

    Roots have separate grids, which need no mask.
    """
    grids: list[Ints] = []
    for chosen in (np.flatnonzero(own == ends), np.flatnonzero((own > 0) & (own < ends))):
        for group in alike(own[chosen]):
            same = chosen[group]
            grids += [same[part] for part in alike(ends[same])]
    return grids


def pack_tree(samples: Sequence[TrainSample], device: torch.device, pays: Pays, *, multiple_of: int = 1) -> Packed:
    """Pack samples, and share each common prefix for which `pays` is true; without one, the result is that of `pack`.

    A shared target is predicted once, unless tokens were sampled from a part of the vocabulary, which may differ
    between samples.

    multiple_of: as in `pack`.
    """
    sequences = [sample.tokens for sample in samples]
    branches = prefix_tree.branches(sequences, pays)
    if not any(branch.shared for branch in branches):
        return pack(samples, device, multiple_of=multiple_of)
    if fill := -sum(len(sequences[branch.index]) - branch.shared for branch in branches) % multiple_of:
        branches.append(Branch(len(sequences), 0))
        sequences.append(np.zeros(fill, sequences[0].dtype))
    tree = prefix_tree.lay_out(sequences, branches)
    responses = [sample.response_length for sample in samples]
    ends = list(zip(tree.paths[: len(samples)], responses, strict=True))
    # A token is predicted at the place before it on its path, which is the same on all its paths.
    rows = np.concatenate([path[-size - 1 : -1] for path, size in ends])
    targets, targets_of = np.concatenate([path[-size:] for path, size in ends]), None
    kept = kept_of_all(samples, device)
    if kept is None:
        targets, first, inverse = np.unique(targets, return_index=True, return_inverse=True)
        rows, targets_of = rows[first], torch.from_numpy(inverse).to(device)
    tokens = tree.tokens.astype(np.int64)
    on_device = [torch.from_numpy(array).to(device) for array in (tokens, tree.positions, rows, tokens[targets])]
    token_ids, position_ids, packed_rows, target_ids = on_device
    packed = TreeSequences.of_tree(tree, packed_rows, device)
    packed.voters = Voters.of([len(tokens) - fill], fill, device)
    return MicroBatch(token_ids[None], position_ids[None], packed, target_ids, responses, kept, targets_of)

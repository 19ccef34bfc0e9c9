"""`ContextSequences`: packed sequences that are cut over context parallel ranks, each with a part of every sequence.

Of n ranks, rank r has the chunks r and 2n - 1 - r of each sequence, which is padded to 2n chunks of equal size. All
ranks then have the same number of tokens and, under a causal mask, the same work. Megatron's RoPE and Transformer
Engine's attention define the same cut; `PackedAttention` gathers keys and values from all ranks. Padding comes last in
its sequence, where no token sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor

from actors.megatron.attention import Ints, PackedSequences, alike, lay_out, mask_of, to_grids
from actors.megatron.voters import Voters
from schemas.doc import doc


class Cut(NamedTuple):
    """Sequences cut over ranks, in tokens."""

    lengths: Annotated[Ints, doc("int64 [sequences]: real tokens of each sequence")]
    padded: Annotated[Ints, doc("int64 [sequences]: tokens with padding, a multiple of 2 x ranks")]
    ranks: int

    @classmethod
    def of(cls, lengths: Sequence[int], ranks: int, multiple_of: int) -> Cut:
        """Cut sequences; a sequence of padding makes the tokens of each rank a multiple of `multiple_of`."""
        real, chunks = np.asarray(lengths, dtype=np.int64), 2 * ranks
        padded = -(-real // chunks) * chunks
        if fill := -int(padded.sum()) % (chunks * multiple_of):
            real, padded = np.append(real, 0), np.append(padded, fill)
        return cls(real, padded, ranks)

    @property
    def share(self) -> Ints:
        """Tokens of each sequence on a rank, int64 [sequences]."""
        return np.floor_divide(self.padded, self.ranks)

    def positions(self, rank: int) -> Ints:
        """Return the position in its sequence of each token of a rank, int64 [tokens of a rank]."""
        share = self.share
        column: Ints = np.arange(share.sum()) - np.repeat(_starts(share), share)
        chunk: Ints = np.repeat(share // 2, share)
        return np.where(column < chunk, rank * chunk, (2 * self.ranks - 2 - rank) * chunk) + column

    def tokens(self, rank: int) -> Ints:
        """Return the packed token of each token of a rank, int64 [tokens of a rank]; their number for padding."""
        positions, share = self.positions(rank), self.share
        is_real = positions < np.repeat(self.lengths, share)
        return np.where(is_real, np.repeat(_starts(self.lengths), share) + positions, self.lengths.sum())

    def order(self) -> Ints:
        """Return, for each token of the padded sequences, its place among the concatenated tokens of all ranks."""
        order, share = np.empty(self.padded.sum(), dtype=np.int64), self.share
        local = np.arange(share.sum())
        for rank in range(self.ranks):
            order[np.repeat(_starts(self.padded), share) + self.positions(rank)] = rank * len(local) + local
        return order


def _starts(sizes: Ints) -> Ints:
    return np.cumsum(sizes) - sizes


@dataclass
class ContextSequences(PackedSequences):
    """Layouts of a rank's part. For Megatron, lengths are those of the whole padded sequences; grids hold this rank's
    tokens as queries, and `rows` are positions among them.
    """

    context: Annotated[dist.ProcessGroup | None, doc("Ranks that have the parts of these sequences.")] = None
    tokens: Annotated[int, doc("Packed tokens of all ranks, without padding.")] = 0
    targets: Annotated[int, doc("Targets of all ranks.")] = 0
    token_of: Annotated[Tensor | None, doc("int64 [this rank's tokens]: packed token; `tokens` for padding")] = None
    positions: Annotated[Tensor | None, doc("int64 [1, this rank's tokens]: position in the sequence")] = None
    own: Annotated[Tensor | None, doc("int64 [this rank's targets]: places among all targets")] = None
    to_keys: Annotated[
        Tensor | None, doc("int64 [key slots of all grids]: place among the tokens of all ranks; any for padding")
    ] = None
    from_keys: Annotated[Tensor | None, doc("int64 [padded tokens of all ranks]: key slot of each token")] = None
    key_grids: Annotated[tuple[tuple[int, int], ...], doc("(sequences, longest) of the keys of each grid")] = ()
    seen: Annotated[tuple[Tensor, ...], doc("mask of each grid")] = ()

    @classmethod
    def of_cut(
        cls, lengths: Sequence[int], rows: Ints, device: torch.device, context: dist.ProcessGroup, multiple_of: int
    ) -> ContextSequences:
        """Return this rank's part of sequences of these lengths. rows: packed tokens that predict targets, ascending.

        multiple_of: the number of this rank's tokens is a multiple.
        """
        cut = Cut.of(lengths, context.size(), multiple_of)
        tokens, positions = cut.tokens(context.rank()), cut.positions(context.rank())
        count, share = int(cut.lengths.sum()), cut.share
        local = np.full(count + 1, -1, dtype=np.int64)
        local[tokens] = np.arange(len(tokens))
        own = np.flatnonzero(local[rows] >= 0)
        # A rank without targets computes one output that nobody reads, since some kernels need a row.
        local_rows = local[rows[own]] if len(own) else np.zeros(1, dtype=np.int64)
        members = alike(share)
        grids, to_grid, from_grid = lay_out(members, _starts(share), share)
        key_grids, to_keys, from_padded = lay_out(members, _starts(cut.padded), cut.padded)
        order = cut.order()
        from_keys = np.empty_like(from_padded)
        from_keys[order] = from_padded
        seen = []
        for chosen, (_, longest) in zip(members, grids, strict=True):
            column = np.minimum(np.arange(longest), share[chosen, None] - 1)
            last_seen = positions[_starts(share)[chosen, None] + column]
            seen.append(mask_of(np.arange(cut.padded[chosen].max()), last_seen).to(device))
        ends = torch.from_numpy(np.concatenate([[0], np.cumsum(cut.padded)]).astype(np.int32))
        arrays = (to_grid, from_grid, local_rows, tokens, positions, own, order[to_keys], from_keys)
        on_device = [torch.from_numpy(array).to(device) for array in arrays]
        return cls(
            qkv_format="thd",
            cu_seqlens_q=ends,
            cu_seqlens_kv=ends,
            max_seqlen_q=int(cut.padded.max()),
            max_seqlen_kv=int(cut.padded.max()),
            ends=ends.to(device),
            grids=grids,
            to_grid=on_device[0],
            from_grid=on_device[1],
            rows=on_device[2],
            context=context,
            tokens=count,
            targets=len(rows),
            token_of=on_device[3],
            positions=on_device[4][None],
            own=on_device[5],
            to_keys=on_device[6],
            from_keys=on_device[7],
            key_grids=key_grids,
            seen=tuple(seen),
            voters=Voters.of(lengths, 0, device, tokens),
        )

    @property
    def masks(self) -> Sequence[Tensor | None]:
        """See `PackedSequences`."""
        return self.seen

    @property
    def has_own_masks(self) -> bool:
        """See `PackedSequences`."""
        return True

    def inputs(self, token_ids: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ids and positions of this rank's tokens, int64 [1, this rank's tokens]."""
        assert self.token_of is not None
        assert self.positions is not None
        return F.pad(token_ids, (0, 1)).index_select(1, self.token_of), self.positions

    def own_targets(self, targets: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return those of this rank, at least one, with the pairs of `MicroBatch.kept` that belong to them."""
        assert self.own is not None
        own = targets.index_select(0, self.own) if len(self.own) else targets[:1]
        if kept is None:
            return own, None
        place = torch.full_like(targets, -1)
        place[self.own] = torch.arange(len(self.own), device=targets.device)
        here = place.index_select(0, kept[0])
        return own, torch.stack([here, kept[1]])[:, here >= 0]

    def of_all_targets(self, values: Tensor) -> Tensor:
        """Join the values of all ranks' targets, [this rank's targets] -> [targets]; collective."""
        assert self.own is not None
        return _joined(values[: len(self.own)], self.own, self.targets, self.context)

    def of_own_tokens(self, values: Tensor, fill: int) -> Tensor:
        """See `PackedSequences`."""
        assert self.token_of is not None
        padded = torch.cat([values, values.new_full((1, *values.shape[1:]), fill)])
        return padded.index_select(0, self.token_of.to(values.device))

    def of_all_tokens(self, values: Tensor) -> Tensor:
        """Join the values of all ranks' tokens, [this rank's tokens, ...] -> [tokens, ...]; collective."""
        assert self.token_of is not None
        is_real = torch.nonzero(self.token_of < self.tokens).squeeze(1)
        places = self.token_of.index_select(0, is_real)
        return _joined(values.index_select(0, is_real), places, self.tokens, self.context)

    def of_all_ranks(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Concatenate keys and values of all ranks; collective. Backward sums the gradients of all ranks."""
        both = torch.cat([key.flatten(1), value.flatten(1)], 1)
        every = gather_from_sequence_parallel_region(both, tensor_parallel_output_grad=True, group=self.context)
        keys, values = torch.split(every, [key[0].numel(), value[0].numel()], 1)
        return keys.reshape(-1, *key.shape[1:]), values.reshape(-1, *value.shape[1:])

    def keys(self, tokens: Tensor) -> Sequence[Tensor]:
        """Lay out keys or values of all ranks as grids, [sequences, longest, groups, size] each."""
        return to_grids(tokens, self.key_grids, self.to_keys, self.from_keys)


def _joined(own: Tensor, places: Tensor, count: int, group: dist.ProcessGroup | None) -> Tensor:
    joined: Tensor = _Joined.apply(own, places, count, group)  # type: ignore[no-untyped-call]
    return joined


class _Joined(torch.autograd.Function):
    """Values of this rank's places to those of all places. Every rank computes the same loss of all places, so that
    the gradient of a rank's values is its slice.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, places: Tensor, count: int, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(places)
        every = own.new_zeros(count, *own.shape[1:])
        every[places] = own
        dist.all_reduce(every, group=group)  # each place has one value and zeros
        return every

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None, None

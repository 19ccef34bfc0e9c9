"""Which queries of a forward pass see which cached keys: the same for all its layers, so worked out once.

A query sees the keys up to its own. Sequences of alike length go together, padded to a multiple of `BLOCK` with the
padding masked; a sequence's keys are gathered once, for all its new tokens and all heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

BLOCK = 16
GATHERED_ELEMENTS = 1 << 23
"""Most elements of keys gathered at once (32 MiB in float32); longer batches go in parts."""
ONE_PART_ELEMENTS = 1 << 20
"""Sequences whose keys are fewer are decoded in one part, whatever their lengths: a call costs more than padding."""
MASK_ELEMENTS = 1 << 15
"""A sequence whose mask, a row for each head and new token, has more gets a call of its own, with one for all heads."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one call of SDPA takes: `tokens` queries of each sequence, every one with a row of the mask to itself.

    rows: of the query, [sequences * tokens]. slots: of the keys in the cache, [sequences * padded], or [padded] where
    all queries are of one sequence. mask: 0 or -inf, [sequences, 1 or heads * tokens, 1, padded].
    """

    rows: torch.Tensor | slice
    tokens: int
    slots: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class Sequences:
    """table [requests, context]: slot numbers. requests, lengths [sequences]: each one's row of it, and its keys.

    heads: of the query. key_elements: of one token's keys. dtype: the query's.
    """

    table: torch.Tensor
    requests: torch.Tensor
    lengths: torch.Tensor
    heads: int
    key_elements: int
    dtype: torch.dtype

    def decoded(self) -> list[Part]:
        """Parts where every sequence has one query."""
        elements = len(self.lengths) * _padded(self.lengths) * self.key_elements
        parts = [slice(None)] if elements <= ONE_PART_ELEMENTS else self._alike(_power(self.lengths.clamp(min=BLOCK)))
        return [Part(rows, 1, self._slots(rows), self._mask(self.lengths[rows, None])) for rows in parts]

    def extended(self, new: torch.Tensor) -> list[Part]:
        """Parts where the queries are the last `new` [sequences] tokens of each sequence, one after another; a sequence
        may have none."""
        starts, firsts = new.cumsum(0) - new, self.lengths - new + 1
        apart = new * self.lengths * self.heads > MASK_ELEMENTS
        parts = []
        for chosen in self._alike(_power(self.lengths.clamp(min=BLOCK)) * 64 + _power(new), ~apart & (new > 0)):
            # A sequence with fewer tokens than others has its last one again: the same row with the same result.
            nth = torch.arange(int(new[chosen].max())).minimum(new[chosen, None] - 1)
            rows = (starts[chosen, None] + nth).flatten()
            mask = self._mask(firsts[chosen, None] + nth, self.heads)
            parts.append(Part(rows, nth.shape[1], self._slots(chosen), mask))
        for sequence in apart.nonzero().flatten().tolist():
            start, first, count = (int(t[sequence]) for t in (starts, firsts, new))
            mask = self._mask(torch.arange(first, first + count)[:, None])
            parts.append(Part(slice(start, start + count), 1, self._slots(slice(sequence, sequence + 1)), mask))
        return parts

    def _alike(self, kinds: torch.Tensor, among: torch.Tensor | None = None) -> Iterator[torch.Tensor]:
        """Numbers of the sequences `among` all in parts of one kind each, none above `GATHERED_ELEMENTS`."""
        for kind in torch.unique(kinds if among is None else kinds[among]).tolist():
            alike = kinds == kind
            chosen = (alike if among is None else alike & among).nonzero().flatten()
            padded = _padded(self.lengths[chosen])
            yield from torch.split(chosen, max(1, GATHERED_ELEMENTS // (self.key_elements * padded)))

    def _slots(self, chosen: torch.Tensor | slice) -> torch.Tensor:
        """Slot numbers [sequences * padded]; slot 0 (SGLang's spare one) where there is no token."""
        lengths = self.lengths[chosen]
        padded = _padded(lengths)
        width = min(padded, self.table.shape[1])
        slots = self.table.new_zeros((len(lengths), padded))
        slots[:, :width] = self.table[:, :width][self.requests[chosen]]
        return slots.masked_fill_(torch.arange(padded) >= lengths[:, None], 0).flatten()

    def _mask(self, seen: torch.Tensor, heads: int = 1) -> torch.Tensor:
        """seen [sequences, tokens]: keys that each query may see -> [sequences, heads * tokens, 1, padded]."""
        hidden = torch.arange(_padded(seen)) >= seen[:, :, None]
        mask = torch.zeros(hidden.shape, dtype=self.dtype).masked_fill_(hidden, -torch.inf)
        return mask[:, None].expand(-1, heads, -1, -1).reshape(len(seen), -1, 1, mask.shape[-1])


def _padded(lengths: torch.Tensor) -> int:
    """The longest of them, as a multiple of `BLOCK`."""
    return -(-int(lengths.max()) // BLOCK) * BLOCK


def _power(counts: torch.Tensor) -> torch.Tensor:
    """The least n with counts <= 2**n."""
    return torch.frexp(counts - 1.0).exponent

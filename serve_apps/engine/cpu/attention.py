"""Attention for SGLang's `torch_native` backend, batched and bit for bit independent of the batch.

SGLang's own runs one SDPA call per sequence and layer, which is most of a decode step of a small model. Here sequences
go together, every new token as a query of its own over the cached keys up to its own. Sequences of similar length are
padded to a multiple of `BLOCK` with the padding masked; a sequence's keys are gathered once, for all its new tokens and
all heads. Measured on AVX2 and AVX-512 with MKL 2024: a row's result has then the same bits for any padding, any
neighbours, and whether its token was decoded or prefilled, so that a resumed rollout continues exactly.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 16
GATHERED_ELEMENTS = 1 << 23
"""Most elements of keys gathered at once (32 MiB in float32); longer batches go in parts."""
ONE_PART_ELEMENTS = 1 << 20
"""Sequences whose keys are fewer are decoded in one part, whatever their lengths: a call costs more than padding."""
MASK_ELEMENTS = 1 << 15
"""A sequence whose mask, a row for each head and new token, is larger gets a call of its own, one row for all heads."""


@dataclass(frozen=True, slots=True)
class Part:
    """The input of one SDPA call: `tokens` queries of each sequence, every one with a row of the mask to itself.

    rows: of the query, [sequences * tokens]. slots: of the keys in the cache, [sequences * padded], or [padded] where
    all queries are of one sequence. mask: 0 or -inf, [sequences, 1 or heads * tokens, 1, padded].
    """

    rows: torch.Tensor | slice
    tokens: int
    slots: torch.Tensor
    mask: torch.Tensor


class Inputs(NamedTuple):
    """What SGLang hands in first, in its order.

    query, output: [rows, heads, dim]. caches: [slots, kv_heads, dim]. table [requests, context]: slot numbers.
    requests, lengths [sequences]: each one's row of the table, and its keys.
    """

    query: torch.Tensor
    output: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    table: torch.Tensor
    requests: torch.Tensor
    lengths: torch.Tensor

    @property
    def key_elements(self) -> int:
        """Of one token's keys."""
        return self.k_cache.shape[1] * self.k_cache.shape[2]

    def decoded(self) -> list[Part]:
        """Parts where every sequence has one query."""
        elements = len(self.lengths) * _padded(self.lengths) * self.key_elements
        parts = [slice(None)] if elements <= ONE_PART_ELEMENTS else self._alike(_power(self.lengths.clamp(min=BLOCK)))
        return [Part(rows, 1, self._slots(rows), self._mask(self.lengths[rows, None])) for rows in parts]

    def extended(self, new: torch.Tensor) -> list[Part]:
        """Parts where the queries are the last `new` [sequences] tokens of each sequence, one after another; a sequence
        may have none."""
        starts, firsts = new.cumsum(0) - new, self.lengths - new + 1
        heads = self.query.shape[1]
        apart = new * self.lengths * heads > MASK_ELEMENTS
        parts = []
        for chosen in self._alike(_power(self.lengths.clamp(min=BLOCK)) * 64 + _power(new), ~apart & (new > 0)):
            # A sequence with fewer tokens than others repeats its last one: the same row with the same result.
            nth = torch.arange(int(new[chosen].max())).minimum(new[chosen, None] - 1)
            rows = (starts[chosen, None] + nth).flatten()
            mask = self._mask(firsts[chosen, None] + nth, heads)
            parts.append(Part(rows, nth.shape[1], self._slots(chosen), mask))
        for sequence in apart.nonzero().flatten().tolist():
            start, first, count = (int(t[sequence]) for t in (starts, firsts, new))
            mask = self._mask(torch.arange(first, first + count)[:, None])
            parts.append(Part(slice(start, start + count), 1, self._slots(slice(sequence, sequence + 1)), mask))
        return parts

    def _alike(self, kinds: torch.Tensor, among: torch.Tensor | None = None) -> Iterator[torch.Tensor]:
        """Indices of the sequences in `among`, in parts of one kind each, none above `GATHERED_ELEMENTS`."""
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
        mask = torch.zeros(hidden.shape, dtype=self.query.dtype).masked_fill_(hidden, -torch.inf)
        return mask[:, None].expand(-1, heads, -1, -1).reshape(len(seen), -1, 1, mask.shape[-1])


def _padded(lengths: torch.Tensor) -> int:
    """The longest of them, as a multiple of `BLOCK`."""
    return -(-int(lengths.max()) // BLOCK) * BLOCK


def _power(counts: torch.Tensor) -> torch.Tensor:
    """The least n with counts <= 2**n."""
    return torch.frexp(counts - 1.0).exponent


def forget_parts(backend: Any, forward_batch: Any) -> None:
    """Before hook of `TorchNativeAttnBackend.init_forward_metadata`, with which every forward pass begins."""
    backend.forward_metadata = {}


def decode(original: Callable[..., torch.Tensor], backend: Any, *given: Any, **options: Any) -> torch.Tensor:
    """Around hook of `TorchNativeAttnBackend._run_sdpa_forward_decode`; cross and windowed attention go to SGLang's.

    given: `Inputs`, and the lengths of an encoder's sequences where there is one.
    """
    if _is_special(given[7:], options):
        return original(backend, *given, **options)
    return _attend(backend, Inputs(*given[:7]), None, options.get("scaling"))


def extend(original: Callable[..., torch.Tensor], backend: Any, *given: Any, **options: Any) -> torch.Tensor:
    """Around hook of `TorchNativeAttnBackend._run_sdpa_forward_extend`, as `decode`, rows = new tokens.

    given: after the inputs how many tokens of each sequence are cached, and how many are new.
    """
    if _is_special(given[9:], options) or not options.get("causal"):
        return original(backend, *given, **options)
    return _attend(backend, Inputs(*given[:7]), given[8], options.get("scaling"))


def _is_special(encoder_lens: tuple[Any, ...], options: dict[str, Any]) -> bool:
    encoded = any(lens is not None for lens in (*encoder_lens, options.get("encoder_lens")))
    return encoded or bool(options.get("is_cross_attn")) or options.get("sliding_window_size") is not None


def _attend(backend: Any, inputs: Inputs, new: torch.Tensor | None, scale: float | None) -> torch.Tensor:
    """Fill the output. The parts of a forward pass are made for its first layer and kept for all with as many heads."""
    query, output, k_cache, v_cache = inputs[:4]
    heads = query.shape[1]
    parts: list[Part] | None = backend.forward_metadata.get((heads, *k_cache.shape[1:]))
    if parts is None:
        parts = inputs.decoded() if new is None else inputs.extended(new)
        backend.forward_metadata[heads, *k_cache.shape[1:]] = parts
    for part in parts:
        rows = query[part.rows] if isinstance(part.rows, slice) else query.index_select(0, part.rows)
        sequences = len(part.mask)
        keys, values = _gather(k_cache, part, query.dtype), _gather(v_cache, part, query.dtype)
        # For SDPA each token of a sequence is one more head over the same keys: a query of its own.
        by_head = rows.view(sequences, part.tokens, heads, -1).transpose(1, 2).reshape(sequences, -1, 1, query.shape[2])
        attended = scaled_dot_product_attention(
            by_head, keys, values, attn_mask=part.mask, scale=scale, enable_gqa=by_head.shape[1] != keys.shape[1]
        )
        output[part.rows] = attended.view(sequences, heads, part.tokens, -1).transpose(1, 2).flatten(0, 1)
    return output


def _gather(cache: torch.Tensor, part: Part, dtype: torch.dtype) -> torch.Tensor:
    """cache [slots, kv_heads, dim] -> [sequences, kv_heads, padded, dim]; index_select is quicker than indexing."""
    rows = cache.index_select(0, part.slots).to(dtype)
    return rows.view(-1, part.mask.shape[-1], *cache.shape[1:]).transpose(1, 2).expand(len(part.mask), -1, -1, -1)

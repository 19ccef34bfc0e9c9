"""`Segments`: the response tokens of several samples, laid end to end: a step is a few large tensor operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from schemas.errors import TrainerError


@dataclass(frozen=True, slots=True)
class Segments:
    """How a flat tensor of `tokens` elements falls apart into samples.

    lengths: response tokens of each sample, [samples]; longest: the largest of them, at least 1.
    slot: int64 [tokens], the place of each token in a [samples, longest] grid.
    mask: bool [tokens], True = trained on.
    mask_sums: float32 [samples], trained tokens of each sample.
    """

    lengths: tuple[int, ...]
    longest: int
    slot: Tensor
    mask: Tensor
    mask_sums: Tensor

    @classmethod
    def of(cls, loss_masks: Sequence[Tensor]) -> Segments:
        """Segments of these loss masks, any dtype, each [response]; at least one sample."""
        if not loss_masks:
            raise TrainerError("a micro batch without samples has no loss: give it at least one")
        device = loss_masks[0].device
        lengths = tuple(len(mask) for mask in loss_masks)
        counts = torch.tensor(lengths, device=device)
        sample = torch.repeat_interleave(torch.arange(len(lengths), device=device), counts)
        starts = counts.cumsum(0) - counts
        position = torch.arange(sum(lengths), device=device) - starts[sample]
        mask = torch.cat(list(loss_masks)) != 0
        longest = max(1, *lengths)
        slot = sample * longest + position
        grid = torch.zeros(len(lengths) * longest, device=device).index_put((slot,), mask.float())
        return cls(lengths, longest, slot, mask, grid.view(-1, longest).sum(1))

    def join(self, parts: Sequence[Tensor], name: str) -> Tensor:
        """Lay [response] tensors end to end as float32 [tokens], zero where the mask is.

        The zero keeps an infinite log-prob of a token that is not trained on out of every later product, in the
        forward and in the backward pass. `name` is for the error when the lengths are not those of the masks.
        """
        lengths = tuple(len(part) for part in parts)
        if lengths != self.lengths:
            raise TrainerError(f"{name} has lengths {lengths}, the loss masks have {self.lengths}: they must agree")
        return torch.cat(list(parts)).float().masked_fill(~self.mask, 0.0)

    def split(self, flat: Tensor) -> list[Tensor]:
        """The inverse of `join`: one view per sample."""
        return list(torch.split(flat, list(self.lengths)))

    def expand(self, per_sample: Tensor) -> Tensor:
        """A value per sample [samples] for each of its tokens [tokens]."""
        return self.unpad(per_sample.unsqueeze(1).expand(-1, self.longest))

    def pad(self, flat: Tensor) -> Tensor:
        """[tokens] -> [samples, longest], zeros on the right.

        Sums go through this grid, forward and backward, because scattered adds come out differently from run to run
        on a GPU.
        """
        return flat.new_zeros(len(self.lengths) * self.longest).index_put((self.slot,), flat).view(-1, self.longest)

    def unpad(self, grid: Tensor) -> Tensor:
        """The inverse of `pad`."""
        return grid.reshape(-1)[self.slot]

    def masked_mean(self, flat: Tensor) -> Tensor:
        """Mean over the trained tokens of each sample, [tokens] -> [samples]; 0 where none is trained on."""
        return self.pad(flat * self.mask).sum(1) / self.mask_sums.clamp_min(1)


def discounted_returns(rewards: Tensor, discount: float) -> Tensor:
    """y[:, t] = sum over k of discount^k * rewards[:, t + k]; rewards and result are [samples, tokens].

    By doubling: after step k every place holds the sum of its next 2^k terms, so log2(tokens) steps are enough.
    """
    returns = rewards
    reach, factor = 1, discount
    while reach < rewards.shape[1]:
        returns = torch.cat([returns[:, :-reach] + factor * returns[:, reach:], returns[:, -reach:]], dim=1)
        reach, factor = reach * 2, factor * factor
    return returns


def gae(rewards: Tensor, values: Tensor, gamma: float, lambd: float) -> Tensor:
    """Generalised advantage estimation (Schulman et al., 2016): advantages of token rewards and values.

    All are [samples, tokens], zeros right of a sample's end. delta_t = r_t + gamma * V_{t+1} - V_t with V = 0 past the
    end; A_t = sum of (gamma * lambd)^k * delta_{t+k}.
    """
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    return discounted_returns(rewards + gamma * following - values, gamma * lambd)

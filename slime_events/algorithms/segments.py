"""`Segments`: the response tokens of several samples in one flat tensor, for few and large tensor operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from schemas.doc import doc
from schemas.errors import TrainerError


@dataclass(frozen=True, slots=True)
class Segments:
    """The division of a flat tensor, [tokens of all samples], into samples."""

    lengths: Annotated[tuple[int, ...], doc("[samples]: response tokens of each sample")]
    longest: Annotated[int, doc("Largest of `lengths`, at least 1.")]
    slot: Annotated[Tensor, doc("int64 [tokens]: index of each token in a [samples, longest] grid")]
    mask: Annotated[Tensor, doc("bool [tokens]: True for a trained token")]
    mask_sums: Annotated[Tensor, doc("float32 [samples]: trained tokens of each sample")]

    @classmethod
    def of(cls, loss_masks: Sequence[Tensor]) -> Segments:
        """Return the segments of loss masks of any dtype, [response] each. Raises TrainerError without samples."""
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
        """Concatenate [response] tensors to float32 [tokens], with zeros where the mask is zero.

        The zeros keep an infinite log-prob of an untrained token out of every later product, forward and backward.
        Raises TrainerError, with `name`, if the lengths are not those of the masks.
        """
        lengths = tuple(len(part) for part in parts)
        if lengths != self.lengths:
            raise TrainerError(f"{name} has lengths {lengths}, the loss masks have {self.lengths}: they must agree")
        return torch.cat(list(parts)).float().masked_fill(~self.mask, 0.0)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Invert `join`: return a view per sample."""
        return list(torch.split(flat, list(self.lengths)))

    def expand(self, per_sample: Tensor) -> Tensor:
        """Repeat a value per sample [samples] for each of the sample's tokens [tokens]."""
        return self.unpad(per_sample.unsqueeze(1).expand(-1, self.longest))

    def pad(self, flat: Tensor) -> Tensor:
        """Reshape [tokens] to [samples, longest], with zeros on the right.

        Sums use this grid, forward and backward, because scattered adds on a GPU differ from run to run.
        """
        return flat.new_zeros(len(self.lengths) * self.longest).index_put((self.slot,), flat).view(-1, self.longest)

    def unpad(self, grid: Tensor) -> Tensor:
        """Invert `pad`."""
        return grid.reshape(-1)[self.slot]

    def masked_mean(self, flat: Tensor) -> Tensor:
        """Return the mean over each sample's trained tokens, [tokens] -> [samples]; 0 without trained tokens."""
        return self.pad(flat * self.mask).sum(1) / self.mask_sums.clamp_min(1)


def discounted_returns(rewards: Tensor, discount: float) -> Tensor:
    """Return y[:, t] = sum over k of discount^k * rewards[:, t + k]; rewards and result are [samples, tokens].

    After doubling step k, each element is the sum of its next 2^k terms, so log2(tokens) steps are enough.
    """
    returns = rewards
    reach, factor = 1, discount
    while reach < rewards.shape[1]:
        returns = torch.cat([returns[:, :-reach] + factor * returns[:, reach:], returns[:, -reach:]], dim=1)
        reach, factor = reach * 2, factor * factor
    return returns


def gae(rewards: Tensor, values: Tensor, gamma: float, lambd: float) -> Tensor:
    """Return advantages by generalized advantage estimation (Schulman et al., 2016, arXiv 1506.02438).

    All tensors are [samples, tokens], with zeros after a sample's end. delta_t = r_t + gamma * V_{t+1} - V_t with V = 0
    past the end; A_t = sum of (gamma * lambd)^k * delta_{t+k}.
    """
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    return discounted_returns(rewards + gamma * following - values, gamma * lambd)

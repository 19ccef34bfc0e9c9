"""`RouterBalance`: the auxiliary losses of a router in an update, and their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.distributed as dist
from megatron.core.transformer.moe.moe_utils import compute_routing_scores_for_aux_loss
from torch import Tensor

from actors.megatron.families.balance_losses import BalanceLosses
from actors.megatron.voters import Voters
from actors.megatron.with_loss import WithLoss
from actors.step.policy import UpdateSize
from schemas.doc import doc


@dataclass(frozen=True, slots=True)
class RouterScores:
    """The scores of a router's experts."""

    experts: int
    per_token: Annotated[int, doc("Experts that process a token.")]
    function: Annotated[str, doc("Megatron's name of the score function.")]

    def of(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return (the best experts, scores that sum to 1) of logits, both [tokens, experts]."""
        best, scores = compute_routing_scores_for_aux_loss(logits, self.per_token, self.function)
        return best.to(scores.dtype), scores


class RouterBalance:
    """The losses of a router in an update. Every rank adds the part of its own tokens; together these are the losses.

    `load`: float32 [experts], choices of each expert in the step. `sums`: [3], the values of the losses of this rank's
    tokens, without coefficients: of the sequences, of the step, and of the logits.
    """

    def __init__(
        self,
        losses: BalanceLosses,
        scores: RouterScores,
        size: UpdateSize,
        group: dist.ProcessGroup,
        device: torch.device,
        scale: float,
    ) -> None:
        """group: ranks that have parts of the same sequences. scale: factor of every loss in the backward pass."""
        self._losses, self._scores, self._size, self._group, self._scale = losses, scores, size, group, scale
        self.load = torch.zeros(scores.experts, device=device)
        self.sums = torch.zeros(3, device=device)
        self.counts = False

    def add_to(self, probs: Tensor, logits: Tensor, voters: Voters) -> Tensor:
        """Return `probs`, whose backward pass adds the gradient of the losses to that of the logits.

        probs, logits: [tokens, experts]. While `counts`, only the load is counted. Without gradients it does nothing
        else: a layer that backward computes again has them then.
        """
        if self.counts:
            best, _ = self._scores.of(logits)
            self.load += (best * voters.real.unsqueeze(1)).sum(0)
        if self.counts or not torch.is_grad_enabled():
            return probs
        values = self._values(logits, voters)
        self.sums += values.detach()
        weights = values.new_tensor([self._losses.sequence, self._losses.step, self._losses.z])
        with_loss: Tensor = WithLoss.apply(probs, (values * weights).sum() * self._scale)  # type: ignore[no-untyped-call]
        return with_loss

    def _values(self, logits: Tensor, voters: Voters) -> Tensor:
        """Return the losses of this rank's tokens, [3]; 0 for those without a coefficient."""
        (best, scores), real = self._scores.of(logits), voters.real.unsqueeze(1)
        nothing = logits.new_zeros(())
        values = [nothing, nothing, nothing]
        if self._losses.sequence:
            values[0] = (self._sequence_factors(best, voters) * scores).sum()
        if self._losses.step:
            # T tokens have T * K choices, so that f is load / (T * K).
            share = self.load / (self._size.tokens * self._scores.per_token)
            values[1] = (scores * real * share).sum() * (self._scores.experts / self._size.tokens)
        if self._losses.z:
            values[2] = (logits.logsumexp(1, keepdim=True).square() * real).sum() / self._size.tokens
        return torch.stack(values)

    def _sequence_factors(self, best: Tensor, voters: Voters) -> Tensor:
        """Return the derivative of the mean balance of sequences by each score, [tokens, experts]."""
        load = best.new_zeros(len(voters.lengths) + 1, best.size(1)).index_add_(0, voters.sequence, best)
        if self._group.size() > 1:
            dist.all_reduce(load, group=self._group)
        # f is load / (T * K) and P is the sum of scores / T, of which padding has none.
        lengths = voters.lengths.to(load.dtype)
        load[:-1] *= (self._scores.experts / (self._scores.per_token * lengths.square())).unsqueeze(1)
        load[-1] = 0.0
        return load.index_select(0, voters.sequence) / self._size.sequences

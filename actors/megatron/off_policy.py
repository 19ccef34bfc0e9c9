"""`OffPolicy`: how the recorded rollouts of a step were weighted by TIS, added up over micro batches and ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from slime_events.algorithms.tis import Correction


class OffPolicy:
    """Of the trained tokens of recorded rollouts. Sums stay on the device until `figures` is asked for."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)
        self._largest = torch.zeros((), device=device)

    def add(self, correction: Correction, chosen: Tensor) -> None:
        """correction: of tokens [tokens]; chosen: bool [tokens], those that are meant."""
        weight, clipped = correction.weight[chosen], correction.clipped[chosen]
        if weight.numel():
            counted = torch.full_like(weight, 1.0)
            self._sums += torch.stack([counted.sum(), weight.sum(), clipped.sum()]).double()
            self._largest = torch.maximum(self._largest, weight.max())

    def figures(self, data: dist.ProcessGroup) -> dict[str, float]:
        """Mean and largest weight, and the share of tokens whose weight was bounded; collective."""
        if data.size() > 1:
            dist.all_reduce(self._sums, group=data)
            dist.all_reduce(self._largest, op=dist.ReduceOp.MAX, group=data)
        tokens, weight, clipped = self._sums.tolist()
        return {
            "recalled_tis": weight / max(tokens, 1.0),
            "recalled_tis_max": float(self._largest),
            "recalled_tis_clipfrac": clipped / max(tokens, 1.0),
        }

"""`Balance`: the auxiliary losses of a model's routers, over its updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.balance_losses import BalanceLosses
from actors.megatron.router import Router
from actors.megatron.router_balance import RouterBalance, RouterScores
from actors.step.policy import UpdateSize

NAMES = ("seq_load_balancing_loss", "load_balancing_loss", "z_loss")
"""Megatron's names of the losses, in the order of `RouterBalance.sums`."""


class Balance:
    """The losses of a model's routers on this rank, and their sums since the last `metrics`."""

    def __init__(self, model: torch.nn.Module, losses: BalanceLosses, architecture: Architecture) -> None:
        self._routers = [module for module in model.modules() if isinstance(module, Router)]
        self._losses = losses
        self._of_routers: list[RouterBalance] = []
        self._layers = sum(map(architecture.has_experts, range(architecture.num_layers)))
        self._device = torch.device(torch.cuda.current_device())
        self._forget()

    def _forget(self) -> None:
        self._sums, self._updates = torch.zeros(3, device=self._device), 0

    @contextmanager
    def of_update(self, size: UpdateSize, scale: float) -> Iterator[None]:
        """Add the losses to the gradients of the passes inside. scale: factor of the main loss."""
        self._of_routers = []
        for router in self._routers:
            scores = RouterScores(router.num_experts, router.topk, router.score_function)
            group, device = router.tp_cp_group, self._device
            router.balance = RouterBalance(self._losses, scores, size, group, device, scale)
            self._of_routers.append(router.balance)
        try:
            yield
            for balance in self._of_routers:
                self._sums += balance.sums
            self._updates += 1
        finally:
            for router in self._routers:
                router.balance = None

    def count(self, passes: Callable[[], object]) -> None:
        """Count the step's load of each expert, if a loss needs it. passes: pass this rank's micro batches."""
        if not self._losses.step:
            return
        for balance in self._of_routers:
            balance.counts = True
        passes()
        group = parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)
        for balance in self._of_routers:
            balance.counts = False
            dist.all_reduce(balance.load, group=group)

    def metrics(self) -> dict[str, float]:
        """Return the losses without coefficients, as means over the layers and the updates; collective."""
        dist.all_reduce(self._sums)  # each rank has some of the tokens of some of the layers
        means = (self._sums / (self._layers * max(self._updates, 1))).tolist()
        self._forget()
        coefficients = (self._losses.sequence, self._losses.step, self._losses.z)
        return {name: mean for name, mean, used in zip(NAMES, means, coefficients, strict=True) if used}

"""`EqualPasses`: a schedule that adds passes over a single token to those over micro batches.

Ranks that send tokens to each other's experts run the same number of passes, and the stages of an interleaved pipeline
a multiple of Megatron's group of micro batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from actors.megatron.forward import pack_sequences
from actors.megatron.prediction import Prediction
from actors.megatron.virtual_stages import passes_multiple
from actors.step.schedule import Figures, Forward, Gradients, Loss, Output, Schedule

IDLE: list[int] = []
"""A micro batch without samples."""


def most_passes(own: int) -> int:
    """Return the highest number of passes among the ranks that share experts. Collective over these ranks."""
    groups = parallel_state.get_expert_model_parallel_group(), parallel_state.get_expert_tensor_parallel_group()
    if not shares_experts():
        return own
    most = torch.tensor(own, device=torch.device(torch.cuda.current_device()))
    for group in groups:
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    return int(most)


def shares_experts() -> bool:
    """Return whether experts are on several ranks, which see other samples."""
    experts: int = parallel_state.get_expert_model_parallel_world_size()
    parts: int = parallel_state.get_expert_tensor_parallel_world_size()
    tensor: int = parallel_state.get_tensor_model_parallel_world_size()
    return experts > 1 or parts > tensor


@dataclass(frozen=True, slots=True)
class EqualPasses:
    """Adds passes over a single token, whose loss is 0, on ranks with fewer micro batches than they need.

    In a pass a rank's experts compute the tokens of all ranks, forward and backward.
    """

    inner: Schedule
    model: torch.nn.Module

    def run(
        self, batches: Sequence[list[int]], forward: Forward[Output], loss: Loss[Output, Figures], gradients: Gradients
    ) -> list[Figures]:
        """See `Schedule`. Collective over the ranks that share experts."""

        def forward_or_idle(members: list[int]) -> Any:
            return forward(members) if members else self._idle()

        def loss_or_none(output: Any, members: list[int]) -> tuple[Tensor | None, Any]:
            return loss(output, members) if members else (output.float().sum() * 0.0, None)

        passes, multiple = most_passes(len(batches)), passes_multiple(self.model.config)
        idle = [IDLE] * (-(-passes // multiple) * multiple - len(batches))
        figures: list[Any] = self.inner.run([*batches, *idle], forward_or_idle, loss_or_none, gradients)
        return figures[: len(batches)]

    def _idle(self) -> Tensor:
        """Return the model's output for a token."""
        config: Any = self.model.config
        token = np.zeros(1, np.int32)
        multiple = config.tensor_model_parallel_size if config.sequence_parallel else 1
        device = torch.device(torch.cuda.current_device())
        packed = pack_sequences([(token, token)], device, multiple_of=multiple)
        assert packed.packed.voters is not None, "packed sequences have voters"
        packed.packed.voters = packed.packed.voters.none()
        packed.packed.prediction = Prediction.idle(packed.token_ids, config)
        output: Tensor = self.model(packed.token_ids, packed.position_ids, None, packed_seq_params=packed.packed)
        return output

"""`with_post_norm`: an attention or an MLP whose output is normalized before it is added to the residual."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


class PostNorm(MegatronModule):  # type: ignore[misc]  # Megatron's class is not typed
    """RMSNorm of hidden states, which Megatron can store in a checkpoint.

    With sequence parallelism, Megatron sums its gradient over tensor parallel ranks.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config=config)
        self.weight = torch.nn.Parameter(torch.ones(config.hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]  # Megatron reads it

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states [..., hidden] with a root mean square of 1, times the weight."""
        return F.rms_norm(hidden, self.weight.shape, self.weight, self.config.layernorm_epsilon)


def with_post_norm(part: ModuleSpec) -> type[torch.nn.Module]:
    """Return a class for a layer's attention or MLP, whose forward returns (normalized output, bias).

    It has the part's own submodules, because Megatron accepts either a spec or a class.
    """

    class Normed(part.module):  # type: ignore[misc]  # the base is Megatron's or Transformer Engine's
        def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
            super().__init__(config=config, submodules=part.submodules, **part.params, **kwargs)
            self.post_norm = PostNorm(config)

        def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
            output, bias = super().forward(*args, **kwargs)
            return self.post_norm(output), bias

    return Normed

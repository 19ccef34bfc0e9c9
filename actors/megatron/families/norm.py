"""`Norm`: RMSNorm for Megatron's own layers, also with sequence parallelism, which Megatron's wrapper refuses.

`use_own_norm` puts it into Megatron's layer specs, `with_post_norm` after an attention or an MLP.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models import backends
from megatron.core.transformer import transformer_block
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


class Norm(MegatronModule):  # type: ignore[misc]  # Megatron's class is not typed
    """RMSNorm, with the same bits and the same name in a checkpoint as torch's.

    With sequence parallelism, Megatron sums its gradient over tensor parallel ranks.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **layer: object) -> None:
        """layer: other arguments that a spec passes to a norm, which are ignored."""
        super().__init__(config=config)
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]  # Megatron reads it

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states [..., hidden] with a root mean square of 1, times the weight."""
        return F.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


@functools.cache
def use_own_norm() -> None:
    """Make `Norm` the norm of Megatron's own layer specs and the final norm of their models.

    Specs of users, who ask Megatron for its own layers, have it too. Do not call it where Transformer Engine is used.
    """
    backends.WrappedTorchNorm = transformer_block.LayerNormImpl = Norm


def with_post_norm(part: ModuleSpec) -> type[torch.nn.Module]:
    """Return a class for a layer's attention or MLP, whose forward returns (normalized output, bias).

    It has the part's own submodules, because Megatron accepts either a spec or a class.
    """

    class Normed(part.module):  # type: ignore[misc]  # the base is Megatron's or Transformer Engine's
        def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
            super().__init__(config=config, submodules=part.submodules, **part.params, **kwargs)
            self.post_norm = Norm(config, config.hidden_size, config.layernorm_epsilon)

        def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
            output, bias = super().forward(*args, **kwargs)
            return self.post_norm(output), bias

    return Normed

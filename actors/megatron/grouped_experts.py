"""`GroupedExperts`: the experts of a rank in two products of groups of rows, instead of one expert after the other.

The parameters are those of Megatron's `SequentialMLP`, so that weights, checkpoints and digests have the same names.
"""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from megatron.core.fusions.fused_bias_swiglu import weighted_bias_swiglu_impl
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from actors.megatron.attention_kernel import capability_of
from actors.megatron.fusions import OTHER_ACTIVATION

logger = logging.getLogger(__name__)

HOPPER = (9, 0)
"""The least compute capability with which torch has a kernel for groups of rows; with others it runs a loop."""
ALIGNED = 8
"""Sizes of the kernel's matrices are multiples of this: 16 bytes of bfloat16."""


class GroupedExperts(SequentialMLP):  # type: ignore[misc]  # Megatron's class is not typed
    """Experts of SwiGLU without biases."""

    def forward(
        self, permuted_local_hidden_states: Tensor, tokens_per_expert: Tensor, permuted_probs: Tensor
    ) -> tuple[Tensor, None]:
        """Return the experts' outputs [rows, hidden], each times its weight.

        permuted_local_hidden_states: [rows, hidden], by expert. tokens_per_expert: int64 [experts], rows of each.
        permuted_probs: [rows], weights of the outputs.
        """
        rows = permuted_local_hidden_states
        if not len(rows):  # the kernel needs rows
            outputs: tuple[Tensor, None] = super().forward(rows, tokens_per_expert, permuted_probs)
            return outputs
        ends = tokens_per_expert.to(rows.device).cumsum(0).to(torch.int32)
        inner = _by_expert(rows, [expert.linear_fc1.weight for expert in self.local_experts], ends)
        if self.config.bias_activation_fusion:
            weighted = weighted_bias_swiglu_impl(inner, None, permuted_probs.unsqueeze(-1), False)
        else:
            gate, up = inner.chunk(2, -1)
            weighted = (F.silu(gate) * up * permuted_probs.unsqueeze(-1)).to(inner.dtype)
        return _by_expert(weighted, [expert.linear_fc2.weight for expert in self.local_experts], ends), None


def _by_expert(rows: Tensor, weights: list[Tensor], ends: Tensor) -> Tensor:
    """Multiply each row by its expert's weight [outputs, inputs]. ends: int32 [experts], rows up to each expert."""
    products: Tensor = F.grouped_mm(rows, torch.stack(weights).transpose(-2, -1), offs=ends)
    return products


def use_grouped_experts(model: torch.nn.Module, config: TransformerConfig, device: torch.device) -> None:
    """Make the experts of a model `GroupedExperts`; if the kernel does not fit, log why they stay as they are."""
    if reason := why_not(config, capability_of(device)):
        logger.warning("experts run one after the other, without grouped GEMM: %s", reason)
        return
    for module in model.modules():
        if type(module) is SequentialMLP:
            module.__class__ = GroupedExperts


def why_not(config: TransformerConfig, capability: tuple[int, int] | None) -> str:
    """Return why experts cannot run in groups; empty if they can. capability: of the GPU; None for the CPU."""
    sizes = {"hidden size": config.hidden_size, "inner size of an expert": config.moe_ffn_hidden_size}
    odd = [f"{name} {size}" for name, size in sizes.items() if size % ALIGNED]
    if config.fp8 or config.fp4:
        return "parameters have 8 or 4 bits"
    if any(getattr(config, name) for name in OTHER_ACTIVATION):
        return "the activation is not SwiGLU alone"
    if capability is None:
        return ""
    if capability < HOPPER:
        return f"the GPU has compute capability {capability[0]}.{capability[1]}, and torch's kernel needs 9.0"
    if not config.bf16:
        return "torch's kernel needs bfloat16"
    return f"{odd[0]} is no multiple of {ALIGNED}" if odd else ""

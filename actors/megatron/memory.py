"""`rank_memory`: the parameters of a model and what a trainer rank keeps of them, by arithmetic.

A launcher plans with it, so it needs neither torch nor Megatron. Activations, communication buffers and the allocator's
own need are not part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated

from actors.megatron.families.architecture import Architecture
from actors.megatron.layout import Layout
from schemas.doc import doc

if TYPE_CHECKING:
    from slime_events.core.config.trainer import TrainerSettings


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of parameters, by the ranks that divide them."""

    copied: Annotated[int, doc("Each rank of a stage has them: norms and routers.")] = 0
    cut: Annotated[int, doc("Tensor parallel ranks divide them.")] = 0
    experts: Annotated[int, doc("Expert parallel and expert tensor parallel ranks divide them.")] = 0

    def __add__(self, other: Parameters) -> Parameters:
        """Return both together."""
        return Parameters(self.copied + other.copied, self.cut + other.cut, self.experts + other.experts)

    @property
    def total(self) -> int:
        """The parameters of all ranks together, each counted once."""
        return self.copied + self.cut + self.experts


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes that a rank keeps of a model in training."""

    parameters: Annotated[int, doc("Parameters of the rank, a number.")]
    weights: int
    gradients: int
    optimizer: Annotated[int, doc("Adam's two moments, and with bfloat16 a copy of the weights in float32.")]

    @property
    def total(self) -> int:
        """All bytes together."""
        return self.weights + self.gradients + self.optimizer


def count_parameters(architecture: Architecture) -> int:
    """Return the number of parameters of the whole model. An embedding that is also the output layer counts once."""
    whole = stage_parameters(architecture, range(architecture.num_layers), first=True, last=True)
    return whole.total


def stage_parameters(architecture: Architecture, layers: Iterable[int], *, first: bool, last: bool) -> Parameters:
    """Return the parameters of a stage of the pipeline. layers: their numbers, from 0 on.

    The last stage of several has its own copy of an embedding that is also the output layer.
    """
    counted = Parameters()
    for layer in layers:
        counted += _attention(architecture) + _mlp(architecture, layer)
    table = Parameters(cut=architecture.vocab_size * architecture.hidden_size)
    if first:
        counted += table
    if last:
        counted += Parameters(copied=architecture.hidden_size) + _prediction(architecture)
        if not (first and architecture.tied):
            counted += table
    return counted


def rank_memory(
    architecture: Architecture, layout: Layout, ranks: int, *, stage: int = 0, bf16: bool = True, sharded: bool = True
) -> RankMemory:
    """Return what a rank of a stage keeps with Adam. ranks: of the whole trainer. sharded: over copies of the model."""
    layers = chain.from_iterable(layout.stages(architecture.num_layers)[stage])
    counted = stage_parameters(architecture, layers, first=stage == 0, last=stage == layout.pipeline - 1)
    dense = counted.copied + counted.cut // layout.tensor
    experts = counted.experts // (layout.expert * layout.expert_tensor)
    copies = ranks // (layout.tensor * layout.pipeline)  # context parallel ranks divide the state too
    expert_copies = ranks // (layout.pipeline * layout.expert * layout.expert_tensor)
    kept = dense // copies + experts // expert_copies if sharded else dense + experts
    here = dense + experts
    return RankMemory(here, weights=(2 if bf16 else 4) * here, gradients=4 * here, optimizer=(12 if bf16 else 8) * kept)


def trainer_memory(architecture: Architecture, settings: TrainerSettings) -> RankMemory:
    """Return what a rank of the fullest stage keeps on its GPU, with the settings' layout and optimizer."""
    offloaded, sharded = bool(settings.megatron.get("optimizer_cpu_offload")), shards_optimizer(settings)
    layout, bf16 = Layout.of(settings), settings.bf16 is not False
    stages = (
        rank_memory(architecture, layout, settings.world_size, stage=stage, bf16=bf16, sharded=sharded)
        for stage in range(layout.pipeline)
    )
    fullest = max(stages, key=lambda memory: memory.total)
    return replace(fullest, optimizer=0) if offloaded else fullest


def shards_optimizer(settings: TrainerSettings) -> bool:
    """Return whether copies of the model divide the optimizer's state: by default with Adam on the GPU."""
    requested = settings.megatron.get("use_distributed_optimizer")
    if requested is not None:
        return bool(requested)
    return settings.optimizer == "adam" and not settings.megatron.get("optimizer_cpu_offload")


def _attention(architecture: Architecture) -> Parameters:
    """Return the parameters of a layer's attention, with the norms before and after it and before the MLP."""
    hidden, heads, groups = architecture.hidden_size, architecture.num_attention_heads, architecture.num_query_groups
    head, latent = architecture.kv_channels, architecture.latent
    if latent is not None:
        norms = 2 * hidden + latent.key_value_rank + (latent.query_rank or 0)
        return Parameters(copied=norms, cut=latent.weights(hidden, heads))
    rows = head * (heads + 2 * groups)
    cut = rows * hidden + heads * head * hidden + rows * architecture.add_qkv_bias
    norms = hidden * (4 if architecture.post_norms else 2) + 2 * head * architecture.qk_layernorm
    return Parameters(copied=norms, cut=cut)


def _prediction(architecture: Architecture) -> Parameters:
    """Return the parameters of the multi-token prediction layer; none if it is not trained."""
    if not architecture.trains_prediction:
        return Parameters()
    hidden = architecture.hidden_size
    layer = _attention(architecture) + _mlp(architecture, architecture.num_layers)
    return layer + Parameters(copied=3 * hidden + 2 * hidden**2)


def _mlp(architecture: Architecture, layer: int) -> Parameters:
    """Return the parameters of a layer's MLP, or of its router and experts."""
    hidden, experts = architecture.hidden_size, architecture.experts
    if experts is None or not architecture.has_experts(layer):
        return Parameters(cut=3 * hidden * architecture.ffn_hidden_size)
    return Parameters(
        copied=experts.count * hidden,
        cut=3 * hidden * experts.shared_ffn_hidden_size,
        experts=experts.count * 3 * hidden * experts.ffn_hidden_size,
    )

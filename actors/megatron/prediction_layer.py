"""`PredictionLayer`: a layer that predicts the token after the next one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor

from actors.megatron.families.norm import Norm


class PredictionLayer(MegatronModule):  # type: ignore[misc]  # Megatron's class is not typed
    """A transformer layer over the hidden state of each position and the embedding of the next token.

    Formula (21) to (23) of the DeepSeek-V3 report, with one layer. Each tensor parallel rank has the whole projection.
    """

    def __init__(self, config: TransformerConfig, spec: ModuleSpec, virtual_stage: int | None) -> None:
        """spec: the layer, as the family builds it. virtual_stage: see `Building`."""
        super().__init__(config=config)
        hidden, epsilon = config.hidden_size, config.layernorm_epsilon
        self.enorm, self.hnorm = Norm(config, hidden, epsilon), Norm(config, hidden, epsilon)
        self.eh_proj = torch.nn.Linear(2 * hidden, hidden, bias=False, dtype=config.params_dtype)
        self.eh_proj.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]  # for Megatron
        number = config.num_layers + 1 - get_transformer_layer_offset(config, virtual_stage)  # Megatron adds the offset
        self.transformer_layer = build_module(spec, config=config, layer_number=number, vp_stage=virtual_stage)
        self.final_layernorm = Norm(config, hidden, epsilon)

    def forward(self, hidden: Tensor, following: Tensor, **layer: Any) -> Tensor:
        """Return hidden states for the output layer, [tokens of this rank, 1, hidden] as both inputs.

        hidden: of the last layer, after the final norm. following: the embedding of the next tokens. layer: the
        arguments of a layer.
        """
        joined = torch.cat([self.enorm(following), self.hnorm(hidden)], -1)
        output, _ = self.transformer_layer(hidden_states=self.eh_proj(joined), attention_mask=None, **layer)
        normed: Tensor = self.final_layernorm(output)
        return normed


class _Layers(MegatronModule):  # type: ignore[misc]  # Megatron's class is not typed
    """Layers over which a pipeline's schedule iterates.

    Megatron finds how parameters are cut only in modules of its own, so this is no `ModuleList`.
    """

    def __iter__(self) -> Iterator[torch.nn.Module]:
        layers: Iterator[torch.nn.Module] = self.children()
        return layers


class PredictionBlock(MegatronModule):  # type: ignore[misc]  # Megatron's class is not typed
    """The layer under the name that it has in Megatron's own models: `layers.0`."""

    def __init__(self, config: TransformerConfig, spec: ModuleSpec, virtual_stage: int | None) -> None:
        super().__init__(config=config)
        self.layers = _Layers(config)
        self.layers.add_module("0", PredictionLayer(config, spec, virtual_stage))

    @property
    def only(self) -> PredictionLayer:
        """The layer."""
        layer = self.layers.get_submodule("0")
        assert isinstance(layer, PredictionLayer)
        return layer

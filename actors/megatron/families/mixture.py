"""`Mixture`: layers with a mixture of experts in place of the MLP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.dense import Dense
from actors.megatron.families.expert_rules import expert_rules
from actors.megatron.families.experts import Experts
from actors.megatron.families.rules import Rule

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec


class Mixture(Dense):
    """A family of mixtures of experts. Attention is that of the next base class, by default `Dense`."""

    @abstractmethod
    def experts_of(self, config: Mapping[str, Any]) -> Experts | None:
        """Return the experts of a parsed config.json; None if it has none."""

    def read(self, config: Mapping[str, Any], where: str) -> Architecture:
        """Return the architecture of the base class with its experts. Raises CheckpointMismatch."""
        return replace(super().read(config, where), experts=self.experts_of(config))

    def layer_spec(self, architecture: Architecture, layer: int, *, transformer_engine: bool) -> ModuleSpec:
        """Return the spec of the base class; in a layer with experts, with a router and its experts as MLP."""
        from actors.megatron.families.expert_layers import with_experts

        spec = super().layer_spec(architecture, layer, transformer_engine=transformer_engine)
        if not architecture.has_experts(layer):
            return spec
        return with_experts(architecture, spec, transformer_engine=transformer_engine)

    def layer_rules(self, architecture: Architecture, layer: int) -> dict[str, Rule]:
        """Return the rules of the base class; in a layer with experts, those of the experts in place of the MLP's."""
        rules = super().layer_rules(architecture, layer)
        if not architecture.has_experts(layer):
            return rules
        mlp = f"decoder.layers.{layer}.mlp."
        return {name: rule for name, rule in rules.items() if mlp not in name} | expert_rules(architecture, layer)

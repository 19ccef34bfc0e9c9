"""GLM-4.5 to GLM-4.7: experts chosen by a sigmoid and a bias, shared experts, and dense first layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.glm4 import rotary_part
from actors.megatron.families.sigmoid_mixture import SigmoidMixture


class Glm4Moe(SigmoidMixture):
    """GLM-4.5, GLM-4.5-Air, GLM-4.6 and GLM-4.7."""

    model_class = "Glm4MoeForCausalLM"
    served_tied = False
    ignored = frozenset({"attention_bias"})

    def read(self, config: Mapping[str, Any], where: str) -> Architecture:
        """Return the architecture, in which only the first values of each head rotate."""
        return replace(
            super().read(config, where),
            add_qkv_bias=bool(config.get("attention_bias", False)),
            qk_layernorm=bool(config.get("use_qk_norm", False)),
            rotary_percent=rotary_part(config),
        )

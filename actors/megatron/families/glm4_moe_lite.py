"""GLM-4.7-Flash: the layers of DeepSeek V3, in a class of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.megatron.families.deepseek_v3 import DeepseekV3
from actors.megatron.families.glm4 import rotary_part


class Glm4MoeLite(DeepseekV3):
    """GLM-4.7-Flash (30B-A3B)."""

    model_class = "Glm4MoeLiteForCausalLM"
    served_tied = False

    def unsupported(self, config: Mapping[str, Any]) -> dict[str, bool]:
        """Return the conditions of DeepSeek V3, and those of values that only transformers or SGLang reads."""
        dense, layers = config.get("first_k_dense_replace") or 0, config["num_hidden_layers"]
        part = rotary_part(config, default=1.0)
        kinds = ["dense"] * min(dense, layers) + ["sparse"] * (layers - dense)
        return super().unsupported(config) | {
            # transformers reads the list, SGLang the number.
            f"mlp_layer_types that differ from first_k_dense_replace {dense}": (
                config.get("mlp_layer_types") not in (None, kinds)
            ),
            f"partial_rotary_factor {part} (1 is supported)": part != 1,
        }

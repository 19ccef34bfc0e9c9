"""MiMo, dense: the layers of Qwen2, and one that predicts a further token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.prediction_names import PredictionNames
from actors.megatron.families.qwen2 import Qwen2


class Mimo(Qwen2):
    """MiMo-7B-Base, MiMo-7B-SFT, MiMo-7B-RL and MiMo-7B-RL-Zero."""

    model_class = "MiMoForCausalLM"
    prediction = PredictionNames(
        prefix="model.mtp_layers.0.",
        enorm="token_layernorm",
        hnorm="hidden_layernorm",
        projection="input_proj",
        norm="final_layernorm",
        hidden_first=True,
    )

    def read(self, config: Mapping[str, Any], where: str) -> Architecture:
        """Return the architecture. transformers does not know the type `mimo` that published checkpoints have."""
        return replace(super().read(config, where), needs_own_code=config.get("model_type") == "mimo")

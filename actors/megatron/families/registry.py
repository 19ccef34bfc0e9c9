"""`FAMILIES`: the model classes that the trainer supports, by the name that config.json has for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.deepseek_v2 import DeepseekV2
from actors.megatron.families.deepseek_v3 import DeepseekV3
from actors.megatron.families.family import Family
from actors.megatron.families.glm4 import Glm4
from actors.megatron.families.glm4_moe import Glm4Moe
from actors.megatron.families.glm4_moe_lite import Glm4MoeLite
from actors.megatron.families.llama import Llama
from actors.megatron.families.mimo import Mimo
from actors.megatron.families.mistral import Mistral
from actors.megatron.families.qwen2 import Qwen2
from actors.megatron.families.qwen3 import Qwen3
from actors.megatron.families.qwen3_moe import Qwen3Moe
from schemas.errors import CheckpointMismatch

FAMILIES: dict[str, Family] = {
    "Qwen3ForCausalLM": Qwen3(),
    "Qwen3MoeForCausalLM": Qwen3Moe(),
    "Qwen2ForCausalLM": Qwen2(),
    "LlamaForCausalLM": Llama(),
    "MistralForCausalLM": Mistral(),
    "Glm4ForCausalLM": Glm4(),
    "DeepseekV2ForCausalLM": DeepseekV2(),
    "DeepseekV3ForCausalLM": DeepseekV3(),
    "Glm4MoeForCausalLM": Glm4Moe(),
    "Glm4MoeLiteForCausalLM": Glm4MoeLite(),
    "MiMoForCausalLM": Mimo(),
}


def family_of(architecture: Architecture) -> Family:
    """Return the family that read the architecture."""
    return FAMILIES[architecture.model_class]


def read_architecture(folder: str | Path) -> Architecture:
    """Read the architecture of a Hugging Face folder. Raises CheckpointMismatch if the trainer cannot build it."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointMismatch(f"{path} is missing: give a Hugging Face checkpoint folder") from None
    except json.JSONDecodeError as error:
        raise CheckpointMismatch(f"{path} is not JSON: {error}") from error
    return architecture_of(config, str(path))


def architecture_of(config: Mapping[str, Any], where: str = "config.json") -> Architecture:
    """Return the architecture of a parsed config. Raises CheckpointMismatch, whose message begins with `where`."""
    names = config.get("architectures") or ["nothing"]
    if names[0] not in FAMILIES:
        raise CheckpointMismatch(f"{where}: architecture {names[0]} is not one of {', '.join(FAMILIES)}")
    if quantized := config.get("quantization_config"):
        raise CheckpointMismatch(
            f"{where}: quantization_config {quantized.get('quant_method', quantized)} is not supported: the trainer "
            "needs weights in bfloat16 or float32. Convert the checkpoint (for DeepSeek's fp8 with its "
            "fp8_cast_bf16.py), leave quantization_config out of the new folder's config.json, and give that folder"
        )
    return FAMILIES[names[0]].read(config, where)

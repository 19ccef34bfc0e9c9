"""The config.json of the checkpoints that launch scripts name."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from tests.megatron.published import PUBLISHED

MODELS = {
    "Qwen2.5-0.5B-Instruct": "qwen2.5-0.5B",
    "Qwen2.5-3B": "qwen2.5-3B",
    "Qwen3-0.6B": "qwen3-0.6B",
    "Qwen3-4B": "qwen3-4B",
    "Qwen3-4B-Base": "qwen3-4B",
    "Qwen3-4B-FP8": "qwen3-4B",
    "qwen3-4b-sft": "qwen3-4B-Instruct-2507",
    "Qwen3-4B-Instruct-2507": "qwen3-4B-Instruct-2507",
    "Qwen3-8B": "qwen3-8B",
    "Qwen3-32B": "qwen3-32B",
    "Qwen3-30B-A3B": "qwen3-30B-A3B",
    "Qwen3-30B-A3B-FP8": "qwen3-30B-A3B",
    "Qwen3-235B-A22B": "qwen3-235B-A22B",
    "Qwen3-235B-A22B-INT4": "qwen3-235B-A22B",
    "GLM-4-9B-0414": "glm4-9B",
    "GLM-Z1-9B-0414": "glm4-9B",
    "GLM-4.7-355B-A32B": "glm4.5-355B-A32B",
    "GLM-4.5-355B-A32B": "glm4.5-355B-A32B",
    "GLM-4.5": "glm4.5-355B-A32B",
    "GLM-4.6": "glm4.5-355B-A32B",
    "GLM-4.5-Air": "glm4.5-106B-A12B",
    "GLM-4.7-Flash": "glm4.7-30B-A3B",
    "Qwen3-235B-A22B-FP8": "qwen3-235B-A22B",
    "Qwen3-30B-A3B-INT4": "qwen3-30B-A3B",
    "Llama-3.1-8B-Instruct": "llama3.1-8B-Instruct",
    "Llama-3.2-3B-Instruct": "llama3.2-3B-Instruct",
    "DeepSeek-R1-bf16": "deepseek-v3",
    "DeepSeek-V3": "deepseek-v3",
    "Kimi-K2-Instruct": "kimi-k2",
    "DeepSeek-R1": "deepseek-v3",
    "Kimi-K2-Thinking": "kimi-k2-thinking",
    "Kimi-K2-Thinking-fp8": "kimi-k2-thinking",
    "MiMo-7B-RL": "mimo-7B-rl",
    "Moonlight-16B-A3B": "moonlight",
    "Moonlight-16B-A3B-Instruct-INT4": "moonlight",
}
"""Folder name of a checkpoint to the published model that it is, or was trained from."""

OTHER_CLASSES = {
    "GLM-5": "GlmMoeDsaForCausalLM",
    "Qwen3-Next-80B-A3B-Thinking": "Qwen3NextForCausalLM",
    "Qwen3.5-9B": "Qwen3_5ForConditionalGeneration",
    "Qwen3.5-27B": "Qwen3_5ForConditionalGeneration",
    "Qwen3.5-35B-A3B": "Qwen3_5MoeForConditionalGeneration",
    "Qwen3.6-35B-A3B": "Qwen3_5MoeForConditionalGeneration",
}
"""Folder name of a checkpoint to its model class, of which only the name is known here."""


def config_of(checkpoint: str) -> dict[str, Any]:
    """Return the config.json of a checkpoint, or of a published model. Raises KeyError if no table has its name."""
    folder = PurePath(checkpoint).name
    if folder in OTHER_CLASSES:
        return {"architectures": [OTHER_CLASSES[folder]]}
    return PUBLISHED[MODELS.get(folder, folder)].config


def model_of(checkpoint: str) -> str:
    """Return the name of the published model of a checkpoint, or its model class."""
    folder = PurePath(checkpoint).name
    return OTHER_CLASSES.get(folder) or MODELS.get(folder, folder)

"""Tiny models and batches for the tests of the trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.training.train_batch import TrainBatch, TrainSample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VOCAB = 64
FAMILIES = (
    "qwen3",
    "qwen2",
    "llama",
    "mistral",
    "glm4",
    "qwen3_moe",
    "glm4_moe",
    "deepseek_v2_dense",
    "deepseek_v2",
    "deepseek_v2_groups",
    "deepseek_v3",
    "moonlight",
    "glm4_moe_lite",
    "mimo",
)
"""Names of the families for `make_model`."""
WITH_EXPERTS = (
    "qwen3_moe",
    "glm4_moe",
    "deepseek_v2",
    "deepseek_v2_groups",
    "deepseek_v3",
    "moonlight",
    "glm4_moe_lite",
)
"""Those that run with one tensor parallel rank alone."""
GLM4_MOE: dict[str, Any] = {
    "head_dim": 16, "attention_bias": True, "use_qk_norm": True, "pad_token_id": None, "eos_token_id": 1,
    "n_routed_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 24, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "n_group": 4, "topk_group": 2, "num_mtp_layers": 0,
    "num_hidden_layers": 3,
}  # fmt: skip
"""Each part of a GLM-4.5 that its config can turn off; and groups, which DeepSeek-V3 uses."""
MOVING_BIAS = {"megatron": {"moe_router_bias_update_rate": 0.01}}
"""Settings with which a step moves the routers' biases."""


def make_model(
    folder: Path, family: str = "qwen3", *, tied: bool = True, seed: int = 0, **sizes: Any
) -> PreTrainedModel:
    """A random float32 model, saved to `folder` in Hugging Face's layout."""
    if family.startswith(("deepseek", "moonlight", "glm4_moe_lite")):
        return _latent_model(folder, family, {"tie_word_embeddings": tied} | sizes, seed)
    from transformers import (  # takes seconds, which ranks that load a finished model need not spend
        Glm4Config,
        Glm4ForCausalLM,
        Glm4MoeConfig,
        Glm4MoeForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    common = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": tied,
        "initializer_range": 0.2,
    } | sizes
    torch.manual_seed(seed)
    model: PreTrainedModel
    if family == "qwen3":
        rope = {"rope_type": "default", "rope_theta": 1e6}
        model = Qwen3ForCausalLM(Qwen3Config(rope_parameters=rope, **{"head_dim": 16} | common))
    elif family in ("qwen2", "mimo"):
        model = Qwen2ForCausalLM(Qwen2Config(**common))
    elif family == "qwen3_moe":
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
        rope, experts = {"rope_type": "default", "rope_theta": 1e6}, {"head_dim": 16} | experts
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(rope_parameters=rope, **experts | common))
    elif family == "glm4_moe":
        rope = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
        model = Glm4MoeForCausalLM(Glm4MoeConfig(rope_parameters=rope, **common | GLM4_MOE | sizes))
    elif family == "mistral":
        model = MistralForCausalLM(MistralConfig(head_dim=16, sliding_window=None, **common))
    elif family == "glm4":
        rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
        glm = {"head_dim": 16, "attention_bias": True, "pad_token_id": None, "eos_token_id": 1, "rope_parameters": rope}
        model = Glm4ForCausalLM(Glm4Config(**glm | common))
    else:
        model = LlamaForCausalLM(LlamaConfig(**common))
    return _saved(model, folder, "MiMoForCausalLM" if family == "mimo" else None)


def _latent_model(folder: Path, family: str, sizes: dict[str, Any], seed: int) -> PreTrainedModel:
    """A model of `make_model` with latent attention; heads have values of another size than keys."""
    import transformers

    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 16,
            "beta_fast": 32.0, "beta_slow": 1.0}  # fmt: skip
    scales = {"mscale": 0.707, "mscale_all_dim": 0.9}
    default = {"rope_type": "default", "rope_theta": 5e4}
    common = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 10,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        # SGLang reads the next two, and transformers 5 leaves them out of its own files.
        "moe_layer_freq": 1,
        "scoring_func": "softmax" if family.startswith("deepseek_v2") else "sigmoid",
        "n_group": 1,
        "topk_group": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "n_shared_experts": 2,
    }
    torch.manual_seed(seed)
    own: dict[str, Any] = {
        "first_k_dense_replace": 1,
        "q_lora_rank": None,
        "rope_parameters": default,
        "topk_method": "greedy" if family.startswith("deepseek_v2") else "noaux_tc",
    }
    if family == "deepseek_v2_dense":
        own |= {"first_k_dense_replace": 9, "q_lora_rank": 24, "rope_parameters": yarn | scales}
    if family == "deepseek_v2_groups":
        groups = {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 2, "routed_scaling_factor": 2.5}
        own |= groups | {"topk_method": "group_limited_greedy"}
    if family == "deepseek_v3":
        groups = {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}
        own |= groups | {"q_lora_rank": 24, "rope_parameters": yarn | {"mscale": 1.0, "mscale_all_dim": 1.0}}
    if family == "glm4_moe_lite":
        # The class's own epsilon, 1e-5, is not that of transformers' latent norms (`LatentDense.read`).
        own |= {"q_lora_rank": 24, "rms_norm_eps": 1e-6, "routed_scaling_factor": 1.8, "num_nextn_predict_layers": 0}
        return _saved(
            transformers.Glm4MoeLiteForCausalLM(transformers.Glm4MoeLiteConfig(**common | own | sizes)), folder
        )
    if family in ("deepseek_v3", "moonlight"):
        own |= {"routed_scaling_factor": 2.5, "num_mtp_layers": 0}
        return _saved(transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**common | own | sizes)), folder)
    return _saved(transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(**common | own | sizes)), folder)


def _saved(model: PreTrainedModel, folder: Path, model_class: str | None = None) -> PreTrainedModel:
    """Save a model whose norms and biases are random, too. model_class: a name that transformers does not have."""
    biases = [(name, buffer) for name, buffer in model.named_buffers() if "bias" in name]
    for name, parameter in (*model.named_parameters(), *biases):
        if "norm" in name or "bias" in name:  # all ones and zeros would hide a swapped tensor
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.eval().save_pretrained(folder)
    if model_class:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"architectures": [model_class]}))
    return model


def make_batch(step: int = 0, groups: int = 4, samples: int = 4, *, zero: bool = False, seed: int = 0) -> TrainBatch:
    """A batch with plausible rewards; with `zero` every second group has equal rewards (advantage 0)."""
    random = np.random.default_rng([seed, step])
    samples_ = []
    for group in range(groups):
        prompt = random.integers(0, VOCAB, random.integers(2, 6))
        rewards = random.integers(0, 2, samples).astype(float)
        rewards[:2] = 0.0, 1.0
        centred = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        for index in range(samples):
            response = random.integers(0, VOCAB, random.integers(1, 20))
            mask = (random.random(len(response)) < 0.9).astype(np.int8)
            mask[0] = 1
            samples_.append(
                TrainSample(
                    sample=f"{step}-{group}-{index}",
                    group=f"{step}-{group}",
                    rollout=f"{step}-{group}-{index}",
                    tokens=np.concatenate([prompt, response]).astype(np.int32),
                    response_length=len(response),
                    loss_mask=mask,
                    rollout_log_probs=random.uniform(-5, -3, len(response)).astype(np.float32),
                    reward=0.0 if zero and group % 2 else float(centred[index]),
                    raw_reward=float(rewards[index]),
                    oldest_version=step,
                    newest_version=step,
                )
            )
    return TrainBatch(step=step, samples=tuple(samples_))


def settings_for(folder: Path, **changes: Any) -> TrainerSettings:
    """Settings with a learning rate at which a few steps show."""
    return TrainerSettings(
        **{"hf_checkpoint": str(folder), "lr": 1e-3, "adam_beta2": 0.99, "distributed_timeout_minutes": 1, **changes}
    )

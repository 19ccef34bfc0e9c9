"""The models that learn: the demo's own, and small models of other classes that are taught as it was."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

import tools.demo_base
from slime_events.app.demo.settings import BASE
from tests.megatron import tiny
from tools.demo_base import MODEL_MAX_LENGTH, VOCABULARY, Lessons, save, save_tokenizer, teach

DENSE, EXPERTS, LATENT = "qwen3", "glm4_moe", "deepseek_v3"
SEED = 0
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "max_position_embeddings": MODEL_MAX_LENGTH, "initializer_range": 0.02,
    "bos_token_id": None, "eos_token_id": 258, "pad_token_id": 256,
    "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
    "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 192, "n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-6,
}  # fmt: skip
"""A dense layer, then one with four experts and a shared one."""
SIZES: dict[str, dict[str, Any]] = {
    EXPERTS: {"num_key_value_heads": 2, "head_dim": 32, "attention_bias": False},
    LATENT: {
        "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
        "v_head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}  # fmt: skip
"""Sizes by the name for `tests.megatron.tiny.make_model`."""
MADE_BY = (tools.demo_base, tiny)
"""Modules that a model depends on, besides this one."""


def model_folder(family: str, cache: Path) -> Path:
    """Return the folder of a model that has had the demo's lessons. Makes it in minutes if `cache` lacks it."""
    if family == DENSE:
        return BASE
    folder = cache / f"{family}-{_digest()}"
    if folder.exists():
        return folder
    making = cache / f"{folder.name}.making"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    tokenizer = save_tokenizer(making)
    make = partial(tiny.make_model, making, family, tied=True, **COMMON | SIZES[family])
    with contextlib.redirect_stdout(io.StringIO()):
        save(untied(teach(tokenizer, SEED, Lessons(), make)), tokenizer, making)
    return making.rename(folder)


def untied(model: PreTrainedModel) -> PreTrainedModel:
    """Give a model an output layer of its own, as published models of these classes have it."""
    copy = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    model.get_output_embeddings().weight = copy
    model.config.tie_word_embeddings = False
    return model


def _digest() -> str:
    """Return a digest of the code that makes a model."""
    files = [Path(__file__), *(Path(str(module.__file__)) for module in MADE_BY)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]

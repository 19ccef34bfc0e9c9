"""Each tensor of a checkpoint has the Megatron name that mbridge gives it, and the same values at that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from mbridge import AutoBridge
from mbridge.core.bridge import _MODEL_REGISTRY, Bridge
from safetensors.torch import load_file
from transformers import AutoConfig, PretrainedConfig

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.registry import family_of, read_architecture
from actors.megatron.families.rules import Copy, Rule
from tests.megatron.tiny import FAMILIES, make_model

UNKNOWN = {"mistral", "glm4", "glm4_moe_lite", "deepseek_v2"}
"""Types of models that mbridge does not have."""


def bridge_of(config: PretrainedConfig) -> Bridge:
    """Return mbridge's conversion of a model class, without the Megatron config that it makes for training."""
    if getattr(config, "head_dim", None) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    kind = _MODEL_REGISTRY[config.model_type]
    bridge: Bridge = kind.__new__(kind)
    bridge.hf_config, bridge.dtype, bridge.make_vocab_size_divisible_by = config, torch.float32, None
    return bridge


def all_rules(architecture: Architecture) -> dict[str, Rule]:
    table = (architecture.vocab_size, architecture.hidden_size)
    rules: dict[str, Rule] = {
        "embedding.word_embeddings.weight": Copy.of("model.embed_tokens.weight", *table, cut=0),
        "decoder.final_layernorm.weight": Copy.of("model.norm.weight", architecture.hidden_size),
        "output_layer.weight": Copy.of("lm_head.weight", *table, cut=0),
    }
    for layer in range(architecture.num_layers):
        rules |= family_of(architecture).layer_rules(architecture, layer)
    return rules


def in_mbridge(name: str) -> str:
    """Return the name of an expert's weight in layers that compute all experts at once, which mbridge has."""
    return re.sub(r"experts\.local_experts\.(\d+)\.(\w+)\.weight", r"experts.\2.weight\1", name)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_has_mbridges_name_and_layout(family: str, tmp_path: Path) -> None:
    make_model(tmp_path, family, tied=False)
    config = AutoConfig.from_pretrained(tmp_path)
    if config.model_type in UNKNOWN:
        assert config.model_type not in AutoBridge.list_supported_models()
        return
    bridge, tensors = bridge_of(config), load_file(tmp_path / "model.safetensors")
    compared: set[str] = set()
    for name, rule in all_rules(read_architecture(tmp_path)).items():
        try:
            theirs = bridge._weight_name_mapping_mcore_to_hf(in_mbridge(name))
        except (NotImplementedError, AttributeError):  # a name of Megatron's own layers
            continue
        if not set(theirs) <= tensors.keys():  # a parameter that this model does not have
            assert not set(rule.names) & tensors.keys(), name
            continue
        assert list(rule.names) == theirs, name
        whole = [tensors[hf_name] for hf_name in rule.names]
        assert torch.equal(rule.merge(whole, 0, 1), bridge._weight_to_mcore_format(in_mbridge(name), whole)), name
        compared.update(theirs)
    assert compared == tensors.keys()

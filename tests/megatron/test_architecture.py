"""The architecture from config.json, and the model flags that must agree with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.megatron.families.registry import architecture_of, read_architecture
from actors.megatron.flags import sort_flags
from schemas.errors import CheckpointMismatch, InvalidValue, UnknownFlag

QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
}
# The flags that slime's scripts give for this model.
MODEL_ARGS = {
    "num_layers": 36,
    "hidden_size": 2560,
    "ffn_hidden_size": 9728,
    "swiglu": True,
    "vocab_size": 151936,
    "disable_bias_linear": True,
    "num_attention_heads": 32,
    "group_query_attention": True,
    "num_query_groups": 8,
    "kv_channels": 128,
    "qk_layernorm": True,
    "normalization": "RMSNorm",
    "norm_epsilon": 1e-6,
    "use_rotary_position_embeddings": True,
    "rotary_base": 1000000,
}


def test_slimes_model_flags_agree_with_the_checkpoint() -> None:
    flags = sort_flags({**MODEL_ARGS, "init_method_std": 0.01}, architecture_of(QWEN3_4B), cpu=True)
    assert flags.transformer == {"init_method_std": 0.01}


def test_a_disagreeing_flag_is_named_with_both_values() -> None:
    with pytest.raises(CheckpointMismatch, match=r"--num-layers 35 \(the checkpoint says 36\)") as caught:
        architecture_of(QWEN3_4B).check_flags({**MODEL_ARGS, "num_layers": 35, "qk_layernorm": False})
    assert "--qk-layernorm False (the checkpoint says True)" in str(caught.value)


def test_flags_go_to_every_object_with_that_field() -> None:
    flags_ = {
        "use_distributed_optimizer": True,
        "sgd_momentum": 0.5,
        "apply_rope_fusion": False,
        "attention_backend": "flash",
    }
    flags = sort_flags(flags_, architecture_of(QWEN3_4B), cpu=False)
    assert flags.optimizer == {"use_distributed_optimizer": True, "sgd_momentum": 0.5}
    assert flags.distributed == {"use_distributed_optimizer": True}
    assert flags.transformer["apply_rope_fusion"] is False
    assert flags.transformer["attention_backend"].name == "flash"


def test_cuda_flags_are_left_out_on_the_cpu_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    flags_ = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    assert sort_flags(flags_, architecture_of(QWEN3_4B), cpu=True).transformer == {}
    assert "recompute_granularity" in caplog.text


def test_an_unknown_flag_has_its_nearest_names() -> None:
    with pytest.raises(UnknownFlag, match="--recompute-granularity"):
        sort_flags({"recompute_granularit": "full"}, architecture_of(QWEN3_4B), cpu=False)


def test_dropout_is_refused() -> None:
    with pytest.raises(InvalidValue, match="--hidden-dropout"):
        sort_flags({"hidden_dropout": 0.1}, architecture_of(QWEN3_4B), cpu=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}}, "yarn"),
    ],
)
def test_what_cannot_be_built_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointMismatch, match=message):
        architecture_of({**QWEN3_4B, **change})


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatch, match=r"config\.json is missing"):
        read_architecture(tmp_path)


def test_the_optimizer_keeps_its_own_copies_in_no_case() -> None:
    """slime's scripts have the flag beside the offload of the optimizer, which Megatron-LM does not take alone."""
    flags = {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}
    assert sort_flags(flags, architecture_of(QWEN3_4B), cpu=False).optimizer == {"optimizer_cpu_offload": True}
    assert sort_flags(flags, architecture_of(QWEN3_4B), cpu=True).optimizer == {}

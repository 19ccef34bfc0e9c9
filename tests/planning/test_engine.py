"""The bytes of a cached token, against SGLang's own pools and its number of heads."""

from __future__ import annotations

import pytest
import torch

from actors.megatron.families.registry import architecture_of
from actors.megatron.planned_model import PlannedArchitecture
from serve_apps.engines.arguments import SHIMS
from slime_events.core.config.engine import EngineSettings
from slime_events.core.planning.assumptions import GIB, Assumptions
from slime_events.core.planning.engine_memory import engine_bytes, token_bytes
from tests.megatron.published import PUBLISHED

SLOTS = 128


@pytest.fixture
def shims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let SGLang find the CPU's placeholders for kernels."""
    monkeypatch.syspath_prepend(str(SHIMS))


def per_gpu(name: str, size: int, **sglang: object) -> int:
    shape = PlannedArchitecture(architecture_of(PUBLISHED[name].config)).shape
    return token_bytes(shape, EngineSettings(rollout_num_gpus_per_engine=size, sglang=sglang))


@pytest.mark.soak
@pytest.mark.usefixtures("shims")
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name", ["qwen3-4B", "qwen2.5-7B", "glm4.5-355B-A32B"])
def test_a_token_has_the_bytes_of_sglangs_pool(name: str, size: int) -> None:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    config = PUBLISHED[name].config
    heads = config["num_key_value_heads"]
    counter = ModelConfig.__new__(ModelConfig)
    counter.get_total_num_kv_heads = lambda: heads
    counter.is_draft_model = False
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    pool = MHATokenToKVPool(
        size=SLOTS, page_size=1, dtype=torch.bfloat16, head_num=counter.get_num_kv_heads(size), head_dim=width,
        layer_num=config["num_hidden_layers"], device="cpu", enable_memory_saver=False, enable_alt_stream=False,
    )  # fmt: skip
    assert sum(pool.get_kv_size_bytes()) / (SLOTS + 1) == per_gpu(name, size)


@pytest.mark.soak
@pytest.mark.usefixtures("shims")
@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("name", ["deepseek-v3", "glm4.7-30B-A3B"])
def test_a_latent_token_has_the_bytes_of_sglangs_pool(name: str, size: int) -> None:
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

    config = PUBLISHED[name].config
    pool = MLATokenToKVPool(
        size=SLOTS, page_size=1, dtype=torch.bfloat16, kv_lora_rank=config["kv_lora_rank"],
        qk_rope_head_dim=config["qk_rope_head_dim"], layer_num=config["num_hidden_layers"], device="cpu",
        enable_memory_saver=False,
    )  # fmt: skip
    assert pool.get_kv_size_bytes() / (SLOTS + 1) == per_gpu(name, size)


def test_what_a_token_of_known_models_takes() -> None:
    assert per_gpu("qwen3-4B", 1) == 144 * 1024
    assert per_gpu("qwen3-4B", 2) == 72 * 1024
    assert per_gpu("qwen3-4B", 16) == 18 * 1024, "a GPU has at least one head"
    assert per_gpu("qwen3-4B", 8, enable_dp_attention=True, dp_size=4) == 72 * 1024
    assert per_gpu("qwen3-4B", 1, kv_cache_dtype="fp8_e5m2") == 72 * 1024
    assert per_gpu("deepseek-v3", 8) == per_gpu("deepseek-v3", 1) == 2 * 61 * 576


def test_groups_of_attention_each_have_a_cache() -> None:
    shape = PlannedArchitecture(architecture_of(PUBLISHED["deepseek-v3"].config)).shape
    whole = EngineSettings(rollout_num_gpus_per_engine=64)
    groups = EngineSettings(rollout_num_gpus_per_engine=64, sglang={"enable_dp_attention": True, "dp_size": 8})
    one, eight = (engine_bytes(shape, settings, 80 * GIB, Assumptions()) for settings in (whole, groups))
    assert eight.cached > 7 * one.cached * eight.cache / one.cache
    assert eight.weights - one.weights == 2 * (shape.cut // 8 - shape.cut // 64)
    assert one.static == eight.static == int(0.85 * 80 * GIB)

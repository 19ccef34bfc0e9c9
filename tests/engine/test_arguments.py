"""From settings to SGLang's arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from schemas.errors import ConfigError, UnknownFlag
from serve_apps.engines.arguments import engine_launch, server_argument_names
from serve_apps.engines.shared_memory import SHARE
from slime_events.core.config.engine import EngineSettings
from slime_events.core.machine import gpus


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def test_cpu_is_deterministic_and_small(checkpoint: str) -> None:
    launch = engine_launch(EngineSettings(hf_checkpoint=checkpoint, device="cpu"), version=3)
    assert launch.deterministic
    assert launch.arguments["enable_deterministic_inference"] is True
    assert launch.arguments["weight_version"] == "3"
    assert launch.arguments["dtype"] == "float32"
    assert launch.arguments["max_total_tokens"] == 128 * 512
    assert launch.environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert "cpu_shims" in launch.environment["PYTHONPATH"]
    assert launch.arguments.keys() <= server_argument_names()


def test_cuda_gets_neither_placeholders_nor_cpu_arguments(checkpoint: str) -> None:
    launch = engine_launch(EngineSettings(hf_checkpoint=checkpoint, device="cuda", rollout_num_gpus_per_engine=2))
    assert not launch.deterministic
    assert launch.arguments["tp_size"] == 2
    assert launch.arguments["dtype"] == "bfloat16"
    assert "attention_backend" not in launch.arguments
    assert not {"SGLANG_USE_CPU_ENGINE", "PYTHONPATH"} & launch.environment.keys()
    assert launch.arguments.keys() <= server_argument_names()


def test_engines_that_are_not_deterministic_draw_different_random_streams(checkpoint: str) -> None:
    """Two engines of a run, one that was started again, and one of another run; also where a seed is set."""
    names = ["run engine-1a", "run engine-2b", "run engine-3c", "other engine-1a"]
    for options in ({}, {"random_seed": 7}):
        settings = EngineSettings(hf_checkpoint=checkpoint, device="cuda", sglang=options)
        seeds = [engine_launch(settings, name=name).arguments["random_seed"] for name in names]
        assert len(set(seeds)) == len(names)
        assert all(0 <= seed < 2**31 for seed in seeds)
        assert seeds == [engine_launch(settings, name=name).arguments["random_seed"] for name in names]


def test_engines_that_are_deterministic_have_one_seed(checkpoint: str) -> None:
    """Their tokens depend on the seed of a request alone."""
    for settings in (
        EngineSettings(hf_checkpoint=checkpoint, device="cpu"),
        EngineSettings(hf_checkpoint=checkpoint, device="cuda", deterministic=True),
    ):
        assert {engine_launch(settings, name=name).arguments["random_seed"] for name in "ab"} == {0}


def test_an_engine_that_shares_a_gpu_leaves_memory_to_the_rank(checkpoint: str) -> None:
    alone = EngineSettings(hf_checkpoint=checkpoint, device="cuda")
    assert "mem_fraction_static" not in engine_launch(alone).arguments
    shared = replace(alone, colocate=True)
    assert engine_launch(shared).arguments["mem_fraction_static"] < 0.5
    own = replace(shared, sglang={"mem_fraction_static": 0.7})
    assert engine_launch(own).arguments["mem_fraction_static"] == 0.7
    assert [engine_launch(settings).environment.get(SHARE) for settings in (alone, shared, own)] == [None, "0.4", "0.7"]
    assert SHARE not in engine_launch(replace(shared, device="cpu")).environment


def test_an_engine_that_takes_turns_has_most_of_the_gpu_and_can_release_it(checkpoint: str) -> None:
    beside = EngineSettings(hf_checkpoint=checkpoint, device="cuda", colocate=True)
    turns = replace(beside, offload_train=True, offload_rollout=True)
    assert engine_launch(turns).arguments["mem_fraction_static"] > 0.7
    assert engine_launch(turns).arguments["enable_memory_saver"] is True
    assert "enable_memory_saver" not in engine_launch(beside).arguments
    assert "enable_memory_saver" not in engine_launch(replace(turns, device="cpu")).arguments


@pytest.mark.parametrize("share", [0, 1, 1.5, "much"])
def test_a_share_of_a_gpu_is_a_part_of_it(checkpoint: str, share: object) -> None:
    settings = EngineSettings(
        hf_checkpoint=checkpoint, device="cuda", colocate=True, sglang={"mem_fraction_static": share}
    )
    with pytest.raises(ConfigError):
        engine_launch(settings)


def test_an_engine_does_not_go_to_the_cpu_of_a_machine_with_gpus_unless_it_is_told_to(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = tmp_path / "dev"
    devices.mkdir()
    (devices / "nvidia0").touch()
    monkeypatch.setattr(gpus, "DEVICES", devices)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # on a machine that has some too
    with pytest.raises(ConfigError, match="1 GPU"):
        engine_launch(EngineSettings(hf_checkpoint=checkpoint))
    assert engine_launch(EngineSettings(hf_checkpoint=checkpoint, device="cpu")).device == "cpu"


def test_only_the_model_that_is_needed_is_imported(checkpoint: str) -> None:
    launch = engine_launch(EngineSettings(hf_checkpoint=checkpoint, device="cpu"))
    skipped = launch.environment["SGLANG_DISABLED_MODEL_ARCHS"].split(",")
    assert "llama" in skipped
    assert "qwen3" not in skipped


def test_the_users_arguments_win(checkpoint: str) -> None:
    settings = EngineSettings(
        hf_checkpoint=checkpoint, device="cpu", deterministic=False, sglang={"dtype": "bfloat16", "context_length": 256}
    )
    launch = engine_launch(settings)
    assert launch.arguments["dtype"] == "bfloat16"
    assert launch.arguments["max_total_tokens"] == 128 * 256
    assert launch.arguments["enable_deterministic_inference"] is False


def test_an_unknown_argument_is_named_with_near_ones(checkpoint: str) -> None:
    settings = EngineSettings(hf_checkpoint=checkpoint, device="cpu", sglang={"mem_fraction_statik": 0.5})
    with pytest.raises(UnknownFlag, match=r"--sglang-mem-fraction-statik.*--sglang-mem-fraction-static"):
        engine_launch(settings)


def test_a_checkpoint_without_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        engine_launch(EngineSettings(hf_checkpoint=str(tmp_path), device="cpu"))
    with pytest.raises(ConfigError, match="hf_checkpoint is empty"):
        engine_launch(EngineSettings(device="cpu"))


def test_a_key_is_not_given_to_sglang_which_prints_its_arguments(checkpoint: str) -> None:
    options = {"api_key": "${SLIME_EVENTS_SGLANG_API_KEY}", "admin_api_key": "x", "random_seed": 7}
    launch = engine_launch(EngineSettings(hf_checkpoint=checkpoint, device="cpu", sglang=options))
    assert launch.arguments.keys() & options.keys() == {"random_seed"}

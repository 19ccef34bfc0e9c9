"""`--preset`: the flags of a published model agree with its config.json, and explicit flags take precedence."""

from __future__ import annotations

import pytest

from actors.megatron.families.registry import FAMILIES, architecture_of
from schemas.errors import CheckpointMismatch, InvalidValue
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.config.presets import presets
from slime_events.core.config.toml import to_toml
from tests.config.launch_scripts import DENSE, LATENT, MOE
from tests.megatron.published import PUBLISHED

LEAST = ("--hf-checkpoint", "model", "--num-rollout", "6", "--rm-type", "math")
NOT_FACTS = frozenset((
    "apply_rope_fusion", "attention_softmax_in_fp32", "moe_aux_loss_coeff", "moe_grouped_gemm", "moe_permute_fusion",
    "moe_router_bias_update_rate", "moe_router_dtype", "moe_router_load_balancing_type", "moe_router_pre_softmax",
    "moe_token_dispatcher_type", "mscale", "mscale_all_dim",
))  # fmt: skip
"""Flags of slime's files that say how a model runs, or that have no effect on it, as the scales without yarn."""


def parse(*words: str) -> ParsedTrain:
    return parse_train([*LEAST, *words])


def flags_of(*words: str) -> dict[str, object]:
    return dict(parse(*words).settings.trainer.megatron)


@pytest.mark.parametrize("name", presets())
def test_a_preset_agrees_with_the_published_config(name: str) -> None:
    config = PUBLISHED[name].config
    if config["architectures"][0] not in FAMILIES:
        return
    architecture, flags = architecture_of(config), flags_of("--preset", name)
    architecture.check_flags(flags)
    assert {flag for flag in flags if flag not in architecture.as_flags()} <= NOT_FACTS
    with pytest.raises(CheckpointMismatch, match=r"--hidden-size \d+ \(the checkpoint says \d+\)"):
        architecture.check_flags(flags | {"hidden_size": 1})


def test_each_published_model_has_a_preset() -> None:
    assert set(presets()) == set(PUBLISHED)


@pytest.mark.parametrize(("name", "script"), [("qwen3-4B", DENSE), ("qwen3-30B-A3B", MOE), ("deepseek-v3", LATENT)])
def test_a_preset_has_the_flags_of_slimes_file(name: str, script: str) -> None:
    """Compare with the flags that launch scripts of slime's users have."""
    preset, sourced = flags_of("--preset", name), flags_of(*script.split())
    assert {flag: value for flag, value in sourced.items() if flag in preset} == {
        flag: value for flag, value in preset.items() if flag in sourced
    }
    assert len(preset.keys() & sourced.keys()) > 12


def test_explicit_flags_take_precedence_and_a_note_says_so() -> None:
    parsed = parse("--num-layers", "4", "--preset", "QWEN3-4b", "--hidden-size", "2560")
    assert parsed.settings.trainer.megatron["num_layers"] == 4
    assert [note for note in parsed.notes if "--preset" in note] == [
        "--preset QWEN3-4b has num_layers 36, and 4 is set: that applies."
    ]


def test_a_file_takes_precedence_over_a_preset() -> None:
    recorded = to_toml(parse("--preset", "qwen3-4B").settings)
    again = parse_train(["--config", "recorded", "--preset", "qwen3-8B"], read=lambda _: recorded)
    assert again.settings.trainer.megatron["hidden_size"] == 2560
    assert any("has hidden_size 4096, and 2560 is set" in note for note in again.notes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--preset", "qwen3-5B"), "Did you mean qwen3-"),
        (("--preset", "none of them"), "Presets: qwen2.5-0.5B, "),
        (("--preset", "qwen3-4B", "--preset", "qwen3-8B"), "given 2 times"),
        (("--preset",), "needs a value"),
    ],
)
def test_an_unknown_preset_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        parse(*words)


def test_the_spec_of_glm4_is_what_its_config_says() -> None:
    assert flags_of("--spec", "slime_plugins.models.glm4", "get_glm_spec") == flags_of()


def test_the_scaling_factor_of_slimes_llama_scripts_is_compared() -> None:
    architecture = architecture_of(PUBLISHED["llama3.1-8B"].config)
    architecture.check_flags(flags_of("--use-rope-scaling", "--rotary-scaling-factor", "8.0"))
    with pytest.raises(CheckpointMismatch, match=r"--rotary-scaling-factor 32.0 \(the checkpoint says 8.0\)"):
        architecture.check_flags(flags_of("--rotary-scaling-factor", "32.0"))

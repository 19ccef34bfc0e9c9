"""`--megatron-config-path`: slime's file of settings for each role."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import InvalidValue, UnknownFlag
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.settings import TrainSettings

LEAST = ("--hf-checkpoint", "m", "--num-rollout", "1", "--rm-type", "math")


def parsed(folder: Path, overrides: str, *more: str, role: str = "actor") -> TrainSettings:
    file = folder / "roles.yaml"
    file.write_text(f"megatron:\n  - name: default\n    role: {role}\n    overrides: {overrides}\n")
    return parse_train(["--megatron-config-path", str(file), *LEAST, *more]).settings


def test_overrides_go_over_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASE", "/there")
    text = (
        '{lr: "1e-5", adam_beta2: 0.95, load: "${BASE}/actor", use_kl_loss: true, grpo_std_normalization: false, '
        "bf16: false, qk_layernorm: true, apply_rope_fusion: false, recompute_granularity: full, "
        "freeze_params_name_list: [embedding, norm]}"
    )
    settings = parsed(tmp_path, text, "--lr", "1e-6", "--bf16")
    trainer = settings.trainer
    assert (trainer.lr, trainer.adam_beta2, trainer.load, trainer.bf16) == (1e-5, 0.95, "/there/actor", False)
    assert trainer.freeze_params_name_list == ["embedding", "norm"]
    assert trainer.megatron == {"qk_layernorm": True, "apply_rope_fusion": False, "recompute_granularity": "full"}
    assert (settings.algorithm.use_kl_loss, settings.algorithm.grpo_std_normalization) == (True, False)


@pytest.mark.parametrize(
    ("overrides", "role", "says"),
    [
        ("[lr]", "actor", "overrides"),
        ("{lr: 1}", "judge", "judge"),
        ("{lr: fast}", "actor", "--lr"),
        ("{load: '${NOWHERE_TO_BE_FOUND}'}", "actor", "NOWHERE_TO_BE_FOUND"),
    ],
)
def test_what_cannot_be_is_named(overrides: str, role: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=says):
        parsed(tmp_path, overrides, role=role)


def test_an_unknown_setting_gets_the_nearest_names(tmp_path: Path) -> None:
    with pytest.raises(UnknownFlag, match="--weight-decay"):
        parsed(tmp_path, "{weight_decai: 0.1}")
    (tmp_path / "list.yaml").write_text("lr: 1\n")
    with pytest.raises(InvalidValue, match="role: actor"):
        parse_train([*LEAST, "--megatron-config-path", str(tmp_path / "list.yaml")])

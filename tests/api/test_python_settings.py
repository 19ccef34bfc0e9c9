"""Settings from Python and from `--print-config` are those of a command line."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events import (
    DataSettings,
    EngineSettings,
    MetricsSettings,
    RewardSettings,
    RolloutSettings,
    RunSettings,
    TrainerSettings,
    TrainSettings,
    check_settings,
    parse_settings,
    settings_toml,
)
from tests.cli.invoke import command
from tests.config.launch_scripts import STARTS

SMALL = TrainSettings(
    run=RunSettings(run="small"),
    data=DataSettings(prompt_data="/data/sums.jsonl"),
    rollout=RolloutSettings(num_rollout=2, rollout_batch_size=4, n_samples_per_prompt=2),
    reward=RewardSettings(rm_type="exact"),
    engine=EngineSettings(hf_checkpoint="/models/small"),
    trainer=TrainerSettings(lr=1e-5),
)
FLAGS = """--run small --prompt-data /data/sums.jsonl --num-rollout 2 --rollout-batch-size 4 --n-samples-per-prompt 2
  --rm-type exact --hf-checkpoint /models/small --lr 1e-5"""


def test_they_are_derived_like_flags() -> None:
    assert check_settings(SMALL) == parse_settings(*shlex.split(FLAGS))


def test_a_path_may_be_a_path() -> None:
    data = DataSettings(prompt_data=Path("/data/sums.jsonl"))  # type: ignore[arg-type]
    assert check_settings(replace(SMALL, data=data)) == check_settings(SMALL)


@pytest.mark.parametrize("value", ["1e-5", object(), [1.0], {"lr": 1.0}, b"1"])
def test_a_value_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValue):
        check_settings(replace(SMALL, trainer=TrainerSettings(lr=value)))


def test_what_cannot_be_together_is_refused() -> None:
    with pytest.raises(ImpossibleCombination):
        check_settings(replace(SMALL, reward=RewardSettings()))


@pytest.mark.parametrize("name", STARTS)
def test_printed_settings_are_the_settings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of flags, TOML and YAML they came from."""
    (tmp_path / "examples" / "train_infer_mismatch_helper").mkdir(parents=True)
    helper = tmp_path / "examples" / "train_infer_mismatch_helper" / "mis.yaml"
    helper.write_text("tis_level: token\ntis_mode: truncate\ntis_upper_bound: 2.0\n")
    monkeypatch.chdir(tmp_path)
    settings = parse_settings(*shlex.split(STARTS[name]))
    printed = tmp_path / "printed.toml"
    printed.write_text(settings_toml(settings))
    helper.unlink()
    assert parse_settings("--config", str(printed)) == settings


def test_the_command_prints_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = ("--runs-dir", str(tmp_path / "runs"))
    assert command("train")([*shlex.split(FLAGS), *runs, "--print-config"]) == 0
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    assert parse_settings("--config", str(printed)) == parse_settings(*shlex.split(FLAGS), *runs)
    assert not (tmp_path / "runs").exists()


def test_a_secret_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "0123456789abcdef0123456789abcdef01234567"
    settings = replace(SMALL, metrics=MetricsSettings(wandb_key=secret))
    assert secret not in settings_toml(settings)

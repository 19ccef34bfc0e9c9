"""`slime-events convert` with the flags that slime's users give its converters."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_events.app.cli.main import main
from tests.megatron.tiny import make_model

MODEL_ARGS = ["--num-layers", "2", "--hidden-size", "32", "--swiglu", "--qk-layernorm", "--no-rope-fusion"]


def test_slimes_converters_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_model(tmp_path / "model", tied=False)
    there = ["--hf-checkpoint", str(tmp_path / "model"), "--save", str(tmp_path / "model_torch_dist")]
    assert main(["convert", *MODEL_ARGS, *there]) == 0, capsys.readouterr().err
    back = ["--load", str(tmp_path / "model_torch_dist"), "--output-dir", str(tmp_path / "again")]
    assert main(["convert", *MODEL_ARGS, *back, "--origin-hf-dir", str(tmp_path / "model")]) == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("model", "again")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("flags", "code", "reason"),
    [
        (["--num-layers", "3"], 2, "--num-layers 3 (the checkpoint says 2)"),
        (["--lr", "0.5"], 2, "only flags of the model"),
    ],
)
def test_a_flag_of_another_model_or_of_a_run_is_refused(
    flags: list[str], code: int, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model(tmp_path / "model")
    assert main(["convert", str(tmp_path / "model"), str(tmp_path / "out"), *flags]) == code
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

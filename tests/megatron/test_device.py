"""Test where a rank trains: never on the CPU of a machine with GPUs that nobody has hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.megatron import trainee
from actors.megatron.trainee import check_device
from schemas.errors import TrainerError
from slime_events.core.machine import gpus


@pytest.fixture(autouse=True)
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch sees no GPU here, whatever the machine has."""
    monkeypatch.setattr(trainee, "on_cpu", lambda: True)
    monkeypatch.setattr(trainee, "look", lambda machine: machine)
    monkeypatch.setattr(gpus, "KERNELS", ("no_such_kernel",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def put(folder: Path, monkeypatch: pytest.MonkeyPatch, *files: str) -> None:
    monkeypatch.setattr(gpus, "DEVICES", folder)
    for name in files:
        (folder / name).touch()


def test_a_rank_does_not_train_on_the_cpu_of_a_machine_with_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, monkeypatch, "nvidia0", "nvidiactl")
    with pytest.raises(TrainerError, match="1 GPU"):
        check_device()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    check_device()


def test_a_rank_trains_on_the_cpu_of_a_machine_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, monkeypatch)
    check_device()

"""Test what a rank on CUDA sets in its environment before it uses its device."""

from __future__ import annotations

import os

import pytest
import torch

from actors.megatron import trainee
from slime_events.core.run.process_environment import ON_CUDA


@pytest.mark.parametrize(("rank", "visible", "local"), [(5, 1, 0), (5, 4, 1), (3, 8, 3)])
def test_the_environment_is_there_before_the_device_is_used(
    rank: int, visible: int, local: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[torch.device, dict[str, str]]] = []
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for name in ON_CUDA:
        os.environ.pop(name, None)
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: used.append((device, dict(os.environ))))
    assert trainee._take_gpu(rank) == torch.device("cuda", local)
    ((device, environment),) = used
    assert device == torch.device("cuda", local)
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "8", "a value of the user's stays"

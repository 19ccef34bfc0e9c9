"""Memory of tensors that rests: the same values by two ways, and a process that becomes smaller."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slime_events.core.machine import resting_memory
from slime_events.core.machine.resting_memory import Device, OnDisk, OnHost, RestingMemory
from slime_events.core.run.process_environment import KEEP_MEMORY


@pytest.mark.parametrize("device", [OnDisk(), OnHost()], ids=["CPU", "GPU"])
def test_views_have_their_values_again(device: Device) -> None:
    whole = torch.arange(100_000, dtype=torch.float64)
    parameter = torch.nn.Parameter(whole[10:90_000].view(-1, 10))
    small, half, dropped = torch.ones(3), torch.full((5_000,), 0.5, dtype=torch.bfloat16), torch.ones(10_000)
    storages = {tensor.untyped_storage().nbytes() for tensor in (whole, small, half, dropped)}
    memory = RestingMemory(device)
    for _ in range(2):
        released = memory.rest([parameter, whole, small, half, whole[5:]], [dropped, whole])
        assert memory.is_resting
        assert memory.rest([dropped]) == 0
        assert 0.9 * sum(storages) < released <= sum(storages)
        memory.wake()
        memory.wake()
        assert not memory.is_resting
        assert torch.equal(whole, torch.arange(100_000, dtype=torch.float64))
        assert torch.equal(parameter.flatten(), whole[10:90_000])
        assert torch.equal(small, torch.ones(3))
        assert half.eq(0.5).all()
        assert dropped.shape == (10_000,)
        assert dropped.zero_().sum() == 0
        with torch.no_grad():
            parameter.add_(1.0).sub_(1.0)


def test_without_room_for_a_copy_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, memory = torch.ones(100_000), RestingMemory(OnDisk())
    monkeypatch.setattr(resting_memory, "DISK", "/proc")
    with pytest.raises(OSError, match="proc"):
        memory.rest([tensor])
    assert not memory.is_resting
    assert tensor.eq(1.0).all()


def test_the_system_has_the_memory(tmp_path: Path) -> None:
    """In a process with the memory settings of a rank, which would keep freed memory; numpy has seen the tensors."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import torch
from slime_events.core.machine.resting_memory import RestingMemory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

kept, dropped = [torch.randn(1 << 18) for _ in range(64)], torch.ones(1 << 24)
sums = [float(tensor.numpy().sum()) for tensor in kept]
memory = RestingMemory.of(torch.device("cpu"))
before = resident()
memory.rest(kept, [dropped])
resting = resident()
memory.wake()
assert sums == [float(tensor.numpy().sum()) for tensor in kept]
print(before - resting, resident() - resting)
"""
    )
    environment = os.environ | KEEP_MEMORY
    done = subprocess.run([sys.executable, str(program)], env=environment, stdout=subprocess.PIPE, check=True)
    released, taken = map(int, done.stdout.split())
    assert released >= 124  # MiB, of 64 + 64
    assert 60 <= taken <= 80  # dropped pages come back when they are used

"""A rank that meets a fault of its device, or hangs, is a lost rank: another process takes its place."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace

from actors.ray_actors import RankActor
from actors.step.heartbeat import beat, beats
from actors.trainer import ranks, ray_ranks
from actors.trainer.ray_ranks import RayRanks
from schemas.errors import PlugPointError, RankLost, TrainerError
from slime_events.app.launch.roles import is_lost
from slime_events.core.config.derivations import on_device
from slime_events.core.config.settings import TrainSettings
from slime_events.core.training.datums import Beginning, CommandedStep
from slime_events.core.training.train_batch import TrainBatch

BATCH = TrainBatch(step=1, samples=(), temperature=1.0)
FAULTS = [
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    dist.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp, remote process exited or there was a network error"),
    dist.DistNetworkError("Connection was likely closed"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"),
]
NO_FAULTS = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    NotImplementedError("there is no CUDA error here, /gloo/"),
    TrainerError("gradient norm nan"),
    PlugPointError("own.py raised RuntimeError: CUDA error"),
    ValueError("CUDA error"),
]


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise error

    return call


async def started(rank: Any, monkeypatch: pytest.MonkeyPatch, **trainer: Any) -> RayRanks:
    """Start one rank, with `rank` instead of Megatron's."""
    monkeypatch.setattr(ray_ranks, "rank_class", lambda: lambda *_: rank)
    settings = TrainSettings()
    together = RayRanks([])
    await together.start(replace(settings, trainer=replace(settings.trainer, **trainer)), "")
    return together


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
async def test_a_fault_of_rank_0_is_a_loss(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    together = await started(SimpleNamespace(train=raising(fault), close=lambda: None), monkeypatch)
    with pytest.raises(RankLost) as lost:
        await together.train(BATCH)
    assert is_lost(lost.value)
    assert lost.value.__cause__ is fault
    await together.close()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
async def test_a_fault_at_the_start_is_a_loss(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_ranks, "rank_class", lambda: raising(fault))
    with pytest.raises(RankLost):
        await RayRanks([]).start(TrainSettings(), "")


@pytest.mark.parametrize("error", NO_FAULTS, ids=lambda error: type(error).__name__)
async def test_what_would_happen_again_is_none(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    together = await started(SimpleNamespace(train=raising(error), close=lambda: None), monkeypatch)
    with pytest.raises(type(error)) as raised:
        await together.train(BATCH)
    assert raised.value is error
    assert not is_lost(error)
    await together.close()


@pytest.mark.parametrize("error", [*FAULTS, *NO_FAULTS], ids=lambda error: type(error).__name__)
def test_a_further_rank_says_so_too(error: Exception, tmp_path: Path) -> None:
    actor = RankActor(str(tmp_path), 3)
    actor._rank = SimpleNamespace(train=raising(error))
    with pytest.raises(RankLost if error in FAULTS else type(error)) as raised:
        actor.call("train")
    assert is_lost(raised.value) is (error in FAULTS)
    assert error in NO_FAULTS or "rank 3" in str(raised.value)
    actor._printed.close()


async def test_a_rank_that_hangs_is_lost_and_its_peers_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    over, killed = threading.Event(), list[object]()
    monkeypatch.setattr(ray_ranks, "CLOSE_S", 0.01)
    monkeypatch.setattr("ray.kill", killed.append)
    monkeypatch.setattr("ray.put", lambda batch: batch)
    rank = SimpleNamespace(train=lambda *_: over.wait(60), close=lambda: None)
    together = await started(rank, monkeypatch, hang_seconds=0.05)
    peer = SimpleNamespace(call=SimpleNamespace(remote=lambda *_: ranks.asyncio.sleep(60)))
    together._peers = [peer]
    with pytest.raises(RankLost, match="hang-seconds"):
        await together.train(BATCH)
    assert peer in killed
    await together.close()
    over.set()


@pytest.mark.parametrize("hang_seconds", [0.0, None, 0.2])
async def test_a_rank_that_works_is_not(hang_seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one of which nobody asked."""

    def train(batch: TrainBatch, dump: str | None) -> str:
        for _ in range(20):
            if hang_seconds:
                beat()
            threading.Event().wait(0.02)
        return "done"

    rank = SimpleNamespace(train=train, close=lambda: None)
    together = await started(rank, monkeypatch, hang_seconds=hang_seconds)
    assert await together.train(BATCH) == "done"  # type: ignore[comparison-overlap]
    await together.close()


async def test_a_long_checkpoint_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = SimpleNamespace(save_checkpoint=lambda folder: threading.Event().wait(0.2), close=lambda: None)
    together = await started(rank, monkeypatch, hang_seconds=0.02)
    await together.save_checkpoint("there")
    await together.close()


async def test_a_step_that_loads_a_checkpoint_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = SimpleNamespace(train=lambda *_: threading.Event().wait(0.2), close=lambda: None)
    together = await started(rank, monkeypatch, hang_seconds=0.02)
    await together.train(dataclasses.replace(BATCH, commanded=CommandedStep((), Beginning())))
    await together.close()


def test_each_tensor_that_is_hashed_or_loaded_is_a_beat(tiny: Path, trainer: Callable[..., Any]) -> None:
    """They take minutes of a large model, within a step."""
    with trainer(tiny) as rank:
        tensors = len(dict(rank.export_weights()))
        for call in (rank.optimizer_digest, partial(rank.load_weights, tiny)):
            before = beats()
            call()
            assert beats() - before >= tensors / 4


def test_ranks_on_gpus_are_watched_by_default() -> None:
    settings = TrainSettings()
    chosen = {device: on_device(settings, device).trainer.hang_seconds for device in ("cpu", "auto", "cuda")}
    assert (chosen["cpu"], chosen["auto"]) == (None, None)
    assert chosen["cuda"]
    own = replace(settings, trainer=replace(settings.trainer, hang_seconds=0.0))
    assert on_device(own, "cuda").trainer.hang_seconds == 0.0

"""A batch's columns stay in host memory, over the arrays that the ranks of a machine share."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.megatron.rank import TrainerRank
from actors.step.host_columns import joined_on_host
from actors.step.policy import Policy
from actors.step.rollout_step import RolloutStep
from actors.step.step_settings import StepSettings
from slime_events.core.training.train_batch import TrainBatch, TrainSample
from tests.megatron.tiny import make_batch

Trainer = Callable[..., Any]

OWN = """
import torch

def overwrites(args, rollout_data):
    rewards, masks = rollout_data["rewards"], rollout_data["loss_masks"]
    advantages = [torch.full(mask.shape, float(reward)) for mask, reward in zip(masks, rewards)]
    for column in rollout_data.values():
        for value in column:
            if isinstance(value, torch.Tensor):
                value.zero_()
    rollout_data["advantages"] = rollout_data["returns"] = advantages
"""
ARRAYS = ("tokens", "loss_mask", "rollout_log_probs")


def mapped(batch: TrainBatch) -> tuple[TrainBatch, int]:
    """The batch as Ray hands it to a rank of the same machine, and the bytes that are not its arrays'."""
    buffers: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    # A bytes object cannot be written, like Ray's object store.
    kept = [bytes(buffer.raw()) for buffer in buffers]
    return pickle.loads(rest, buffers=kept), len(rest)


def test_a_batch_is_mapped_and_not_copied() -> None:
    """The bytes that are copied for each rank do not grow with the tokens."""
    batch = make_batch()
    longer = dataclasses.replace(batch, samples=tuple(map(_longer, batch.samples)))
    (_, small), (shown, large) = mapped(batch), mapped(longer)
    assert large - small < 64 * len(batch.samples)
    for sample in shown.samples:
        for name in ARRAYS:
            assert not getattr(sample, name).flags.owndata
            assert not getattr(sample, name).flags.writeable


def _longer(sample: TrainSample) -> TrainSample:
    arrays = {name: getattr(sample, name).repeat(1000) for name in ARRAYS}
    return dataclasses.replace(sample, **arrays, response_length=1000 * sample.response_length)


def step_of(rank: TrainerRank, policy: Policy, batch: TrainBatch) -> RolloutStep:
    return RolloutStep(policy, StepSettings(rank._settings, rank._algorithm, rank._functions), batch)


def test_a_step_reads_shared_arrays_in_place(tiny: Path, trainer: Trainer) -> None:
    """Write-protected arrays, whose memory the step uses, give the same digest."""
    batch = make_batch()
    with trainer(tiny) as rank:
        expected = rank.train(batch)
    shown, _ = mapped(batch)
    with trainer(tiny) as rank:
        columns = step_of(rank, rank.trainee, shown).context.columns
        for sample, mask, log_probs in zip(columns.samples, columns.masks, columns.rollout, strict=True):
            assert mask.data_ptr() == sample.loss_mask.ctypes.data
            assert log_probs.data_ptr() == sample.rollout_log_probs.ctypes.data
        result = rank.train(shown)
    assert result.optimizer_digest == expected.optimizer_digest


@pytest.mark.parametrize("algorithm", [{}, {"advantage_estimator": "reinforce_plus_plus"}, {"use_tis": True}])
def test_the_whole_batch_stays_off_the_device(algorithm: dict[str, Any], tiny: Path, trainer: Trainer) -> None:
    """Only a micro batch's part reaches the device, here torch's `meta`, which holds no memory."""
    batch = make_batch()
    with trainer(tiny, algorithm) as rank:
        place = dataclasses.replace(rank.trainee.place, device=torch.device("meta"))
        step = step_of(rank, dataclasses.replace(rank.trainee, place=place), batch)
        step.preparation.run()
    columns = step.context.columns
    for column in (columns.masks, columns.rollout, list(columns.advantages.values()), list(columns.returns.values())):
        assert len(column) == len(batch.samples)
        assert {tensor.device.type for tensor in column} == {"cpu"}
    sent = columns.of([1, 3], columns.advantages)
    assert [(tensor.device.type, len(tensor)) for tensor in sent] == [
        ("meta", batch.samples[index].response_length) for index in (1, 3)
    ]
    shown = columns.of_user([2])
    tensors = [value for column in shown.values() for value in column if isinstance(value, torch.Tensor)]
    assert len(tensors) >= 4
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "overwriting.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "overwriting.overwrites"


def test_a_users_function_may_write_to_its_columns(own: str, tiny: Path, trainer: Trainer) -> None:
    """Its columns are copies: shared arrays are write-protected, and the step does not see the zeros."""
    batch, _ = mapped(make_batch())
    with trainer(tiny) as rank:
        expected = rank.train(batch)
    with trainer(tiny, {"custom_advantage_function_path": own}) as rank:
        result = rank.train(batch)
    assert result.optimizer_digest == expected.optimizer_digest


def test_scores_of_a_micro_batch_come_to_the_host_at_once() -> None:
    """From a device in one copy, in the order and lengths of the samples."""
    parts = [torch.arange(3.0), torch.arange(0.0), torch.arange(5.0)]
    assert joined_on_host([]) == []
    for part, expected in zip(joined_on_host(parts), parts, strict=True):
        assert torch.equal(part, expected)

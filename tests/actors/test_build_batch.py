"""Test what a sealed batch becomes for the trainer, field by field, and why it is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.arrays import pack_log_probs, pack_tokens, unpack
from schemas.batches import BatchSealed
from schemas.errors import StorageError
from schemas.rollouts import StopReason, WeightSpan
from slime_events.core.tokens.trajectory import Trajectory
from slime_events.core.training.train_batch import TrainBatch
from slime_events.loop.conductor.seal import batch_digest
from slime_events.loop.training.pending_batches import build_batch
from tests.made import sealed

WHOLE = Trajectory(
    "g-s0",
    pack_tokens([1, 2]),
    spans=(WeightSpan(0, 1, 6), WeightSpan(1, 3, 7)),
    stop=StopReason.STOP,
    digest="d0",
)
WHOLE.join(0, pack_tokens([3, 4]), pack_log_probs([-0.5, -1.0]), unpack)
WHOLE.join(2, pack_tokens([5]), pack_log_probs([-1.5]), unpack)
FURTHER = dataclasses.replace(
    WHOLE,
    sample="g-s0.1",
    rollout="g-s0",
    loss_mask=np.array([1, 0, 1], np.int8),
    stop=StopReason.LENGTH,
    reused=True,
    digest="d1",
)
LINES = [("g-s0", "d0", 1.0), ("g-s0.1", "d1", -1.0)]
SEALED = sealed(
    4,
    groups=("g",),
    samples=("g-s0", "g-s0.1"),
    rewards=(1.0, -1.0),
    raw_rewards=(3.0, 2.0),
    digest=batch_digest(4, LINES),
)


def built(*trajectories: Trajectory, sealed: BatchSealed = SEALED) -> TrainBatch:
    return build_batch(sealed, {trajectory.sample: trajectory for trajectory in trajectories}, unpack, temperature=0.7)


def test_every_field_of_a_sample_comes_from_the_log() -> None:
    batch = built(WHOLE, FURTHER)
    assert (batch.step, batch.temperature) == (4, 0.7)
    first, second = batch.samples
    assert first.tokens.tolist() == [1, 2, 3, 4, 5]
    assert (first.response_length, first.total_length) == (3, 5)
    assert first.rollout_log_probs.tolist() == [-0.5, -1.0, -1.5]
    assert (first.oldest_version, first.newest_version) == (6, 7)
    assert [sample.loss_mask.tolist() for sample in batch.samples] == [[1, 1, 1], [1, 0, 1]]
    assert [(sample.reward, sample.raw_reward) for sample in batch.samples] == [(1.0, 3.0), (-1.0, 2.0)]
    assert [sample.truncated for sample in batch.samples] == [False, True]
    assert [sample.reused for sample in batch.samples] == [False, True]
    assert first.rollout == second.rollout == "g-s0"
    assert first.group == second.group


@pytest.mark.parametrize(
    "spoil",
    [
        lambda: built(WHOLE),
        lambda: built(WHOLE, dataclasses.replace(FURTHER, stop=None)),
        lambda: built(WHOLE, dataclasses.replace(FURTHER, digest="d2")),
        lambda: built(WHOLE, FURTHER, sealed=_but(rewards=(1.0, 1.0))),
        lambda: built(WHOLE, FURTHER, sealed=_but(step=5)),
        lambda: built(WHOLE, FURTHER, sealed=_but(samples=("g-s0.1", "g-s0"))),
    ],
    ids=["missing", "not ended", "other tokens", "other rewards", "other step", "other order"],
)
def test_what_is_not_exactly_what_was_sealed_is_refused(spoil: Callable[[], TrainBatch]) -> None:
    with pytest.raises(StorageError):
        spoil()


def _but(**changes: Any) -> BatchSealed:
    return msgspec.structs.replace(SEALED, **changes)

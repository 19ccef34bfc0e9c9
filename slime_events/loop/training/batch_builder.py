"""What a sealed batch is as training data: its trajectories, in its order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from schemas.batches import BatchSealed
from schemas.errors import StorageError
from schemas.ids import group_of
from schemas.rollouts import StopReason
from slime_events.core.train_batch import TrainBatch, TrainSample
from slime_events.core.trajectory import Fetch, Trajectory
from slime_events.loop.conductor.seal import batch_digest


def make_batch(
    sealed: BatchSealed, trajectories: Mapping[str, Trajectory], fetch: Fetch, *, temperature: float
) -> TrainBatch:
    """The batch that `sealed` names. Raises StorageError where the log does not hold exactly what was sealed."""
    samples = []
    for sample, reward, raw in zip(sealed.samples, sealed.rewards, sealed.raw_rewards, strict=True):
        trajectory = trajectories.get(sample)
        if trajectory is None or trajectory.stop is None:
            raise StorageError(
                f"step {sealed.step} names sample {sample}, but the log holds no completed rollout of it"
            )
        samples.append(_train_sample(trajectory, fetch, reward=reward, raw=raw))
    lines = [(s.sample, trajectories[s.sample].digest, s.reward) for s in samples]
    if batch_digest(sealed.step, lines) != sealed.digest:
        raise StorageError(f"step {sealed.step}: the log's samples and rewards do not have the digest that was sealed")
    return TrainBatch(step=sealed.step, samples=tuple(samples), temperature=temperature)


def _train_sample(trajectory: Trajectory, fetch: Fetch, *, reward: float, raw: float) -> TrainSample:
    mask = trajectory.loss_mask
    return TrainSample(
        sample=trajectory.sample,
        group=group_of(trajectory.sample),
        rollout=trajectory.rollout or trajectory.sample,
        tokens=np.concatenate([fetch(trajectory.prompt), trajectory.tokens]).astype(np.int32, copy=False),
        response_length=trajectory.length,
        loss_mask=np.ones(trajectory.length, np.int8) if mask is None else mask,
        rollout_log_probs=trajectory.log_probs,
        reward=reward,
        raw_reward=raw,
        oldest_version=trajectory.oldest,
        newest_version=trajectory.newest,
        truncated=trajectory.stop is StopReason.LENGTH,
        recalled=trajectory.recalled,
    )

"""Which samples of a rollout step go into which optimizer step, and to which data parallel rank: pure decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.errors import TrainerError
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.train_batch import TrainSample


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """indices: its samples, into the batch, in batch order. rollouts: how many distinct rollouts they are."""

    indices: tuple[int, ...]
    rollouts: int


def optimizer_steps(samples: Sequence[TrainSample], settings: TrainerSettings) -> list[OptimizerStep]:
    """Cut a batch into optimizer steps of `global_batch_size` rollouts, or into `num_steps_per_rollout` of them.

    Rollouts that do not fill a step are left over, as in slime. Raises TrainerError when not one step is filled.
    """
    members: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        members.setdefault(sample.rollout, []).append(index)
    rollouts = list(members.values())
    size = settings.global_batch_size or len(rollouts) // (settings.num_steps_per_rollout or 1)
    count = len(rollouts) // size if size else 0
    if settings.num_steps_per_rollout:
        count = min(count, settings.num_steps_per_rollout)
    if count == 0:
        raise TrainerError(
            f"the batch has {len(rollouts)} rollouts, one optimizer step takes {size or 'at least 1'} "
            f"(global-batch-size {settings.global_batch_size}, num-steps-per-rollout {settings.num_steps_per_rollout})"
        )
    chunks = [rollouts[step * size : (step + 1) * size] for step in range(count)]
    return [OptimizerStep(tuple(sorted(index for rollout in chunk for index in rollout)), size) for chunk in chunks]


def rank_of(lengths: Sequence[int], ranks: int, *, balance: bool) -> list[int]:
    """The data parallel rank of each sample: in turn, or with `balance` the longest first to the emptiest rank."""
    if not balance:
        return [index % ranks for index in range(len(lengths))]
    load = [0] * ranks
    chosen = [0] * len(lengths)
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        chosen[index] = load.index(min(load))
        load[chosen[index]] += lengths[index]
    return chosen


def rollout_denominators(samples: Sequence[TrainSample]) -> list[float] | None:
    """Trained tokens of each sample's whole rollout, where a rollout became several samples; None where none did."""
    tokens: Counter[str] = Counter()
    for sample in samples:
        tokens[sample.rollout] += int(sample.loss_mask.sum())
    if len(tokens) == len(samples):
        return None
    return [float(tokens[sample.rollout]) for sample in samples]

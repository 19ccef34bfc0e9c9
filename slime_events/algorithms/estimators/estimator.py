"""`Estimator`: computes advantages and a loss from the rewards of a group. Importing it needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from schemas.doc import doc
from schemas.errors import DataError
from slime_events.core.config.algorithm import AlgorithmSettings

if TYPE_CHECKING:
    from torch import Tensor

    from slime_events.algorithms.segments import Segments

EPS = 1e-6


class PolicyLoss(NamedTuple):
    """The policy term per token."""

    loss: Annotated[Tensor, doc("[tokens]")]
    clipped: Annotated[Tensor, doc("[tokens]: 1.0 where the ratio was clipped, else 0.0")]
    ppo_kl: Annotated[Tensor, doc("[tokens]: old - new log-probs, as the loss used them")]


@dataclass(frozen=True, slots=True)
class Estimator:
    """Base class of estimators; the defaults are those of GRPO. Settings, trainer, lineage and rescore use it.

    Rules at the fields of settings read the class variables (`advantage_estimator:takes_kl`).
    """

    takes_kl: ClassVar[Annotated[bool, doc("The advantage includes a KL penalty if `kl_coef` is not 0.")]] = False
    needs_whitening: ClassVar[Annotated[bool, doc("It requires `normalize_advantages`.")]] = False
    needs_values: ClassVar[Annotated[bool, doc("The advantage needs the values of a critic.")]] = False
    has_dual_clip: ClassVar[Annotated[bool, doc("The loss uses `eps_clip_c`.")]] = True
    discounts: ClassVar[Annotated[bool, doc("The advantage uses `gamma`.")]] = False
    normalizes_rewards: ClassVar[Annotated[bool, doc("The advantage uses `rewards_normalization`.")]] = True
    scales_rewards: ClassVar[Annotated[bool, doc("The advantage uses `grpo_std_normalization`.")]] = True

    def reward_normalisation(self, rewards: Sequence[float], settings: AlgorithmSettings) -> list[float]:
        """Return the rewards of a group, in order, normalized for the trainer. Raises DataError."""
        return normalize_group(rewards, scale=settings.grpo_std_normalization)

    def advantage(
        self, rewards: Tensor, kl: Tensor, segments: Segments, settings: AlgorithmSettings, values: Tensor | None = None
    ) -> Tensor:
        """Return advantages [tokens], not yet whitened, from normalized rewards [samples] and the KL [tokens].

        The advantage of a trained token is reward * `discount` ** (distance to the last trained token), minus any KL.
        If `needs_values`, `values` are a critic's before the update, [tokens].
        """
        return segments.expand(rewards)

    def discount(self, settings: AlgorithmSettings) -> float:
        """Return the factor that discounts the reward per token before the last trained token."""
        return 1.0

    def loss(
        self, log_ratio: Tensor, log_probs: Tensor, advantages: Tensor, segments: Segments, settings: AlgorithmSettings
    ) -> PolicyLoss:
        """Return PPO's clipped loss per token.

        log_ratio: old - new log-probs. log_probs: new log-probs. All are [tokens].
        """
        from slime_events.algorithms.clipped_loss import clipped_policy_loss  # imports torch

        low, high = clip_range(settings)
        return PolicyLoss(*clipped_policy_loss(log_ratio, advantages, low, high, settings.eps_clip_c), log_ratio)

    def needs_reference(self, settings: AlgorithmSettings) -> bool:
        """Return whether the trainer needs a reference model."""
        return settings.use_kl_loss or settings.kl_coef != 0


def clip_range(settings: AlgorithmSettings) -> tuple[float, float]:
    """Return by how much the ratio may be below and above 1."""
    return settings.eps_clip, settings.eps_clip if settings.eps_clip_high is None else settings.eps_clip_high


def normalize_group(rewards: Sequence[float], *, scale: bool) -> list[float]:
    """Return reward - mean, with `scale` divided by (unbiased std + 1e-6); exact zeros if all rewards are equal.

    Raises DataError for a reward that is not finite.
    """
    if not all(math.isfinite(reward) for reward in rewards):
        raise DataError(f"rewards {list(rewards)} are not all finite: a grader must return a finite number")
    if max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not scale:
        return centred
    std = math.sqrt(math.fsum(value * value for value in centred) / (len(centred) - 1))
    return [value / (std + EPS) for value in centred]

"""`Estimator`: one way from the rewards of a group to advantages and a loss. Needs no torch until it computes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from schemas.errors import DataError
from slime_events.core.config.algorithm import AlgorithmSettings

if TYPE_CHECKING:
    from torch import Tensor

    from slime_events.algorithms.segments import Segments

EPS = 1e-6


class PolicyLoss(NamedTuple):
    """Per token, [tokens] each: the loss, 1.0 where the ratio was clipped (else 0.0), and old - new log-probs as the
    loss took them.
    """

    loss: Tensor
    clipped: Tensor
    ppo_kl: Tensor


@dataclass(frozen=True, slots=True)
class Estimator:
    """What every estimator answers; the defaults are those of GRPO. Settings, trainer, lineage and rescore ask it.

    takes_kl: its advantage holds a KL penalty where `kl_coef` is not 0. needs_whitening: it is used with
    `normalize_advantages` only. needs_values: its advantage needs the values of a critic, which the trainer trains too.
    has_dual_clip: its loss looks at `eps_clip_c`.
    """

    takes_kl: ClassVar[bool] = False
    needs_whitening: ClassVar[bool] = False
    needs_values: ClassVar[bool] = False
    has_dual_clip: ClassVar[bool] = True

    def reward_normalisation(self, rewards: Sequence[float], settings: AlgorithmSettings) -> list[float]:
        """The rewards of one group, in its order, as the trainer takes them. Raises DataError."""
        return normalize_group(rewards, scale=settings.grpo_std_normalization)

    def advantage(
        self, rewards: Tensor, kl: Tensor, segments: Segments, settings: AlgorithmSettings, values: Tensor | None = None
    ) -> Tensor:
        """Normalised rewards [samples] and KL to the reference [tokens] -> advantages [tokens], not yet whitened.

        Of a trained token it is reward * `discount` ** (distance to the last trained token), less any KL. values: a
        critic's before the update [tokens], where `needs_values`.
        """
        return segments.expand(rewards)

    def discount(self, settings: AlgorithmSettings) -> float:
        """What the reward is multiplied by for each token between a token and the last trained one."""
        return 1.0

    def loss(
        self, log_ratio: Tensor, log_probs: Tensor, advantages: Tensor, segments: Segments, settings: AlgorithmSettings
    ) -> PolicyLoss:
        """PPO's clipped loss per token. log_ratio: old - new log-probs, log_probs: the new ones; all [tokens]."""
        from slime_events.algorithms.clipped_loss import clipped_policy_loss  # torch is not needed to name one

        low, high = clip_range(settings)
        return PolicyLoss(*clipped_policy_loss(log_ratio, advantages, low, high, settings.eps_clip_c), log_ratio)

    def needs_reference(self, settings: AlgorithmSettings) -> bool:
        """Whether the trainer holds a reference model."""
        return settings.use_kl_loss or settings.kl_coef != 0


def clip_range(settings: AlgorithmSettings) -> tuple[float, float]:
    """How far the ratio may be below and above 1."""
    return settings.eps_clip, settings.eps_clip if settings.eps_clip_high is None else settings.eps_clip_high


def normalize_group(rewards: Sequence[float], *, scale: bool) -> list[float]:
    """reward - mean and, with `scale`, over (unbiased std + 1e-6); exact zeros where all rewards are equal.

    A group of one has no spread and is centred only. Raises DataError for a reward that is not finite.
    """
    if not all(math.isfinite(reward) for reward in rewards):
        raise DataError(f"rewards {list(rewards)} are not all finite: a grader must give a number")
    if max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not scale:
        return centred
    std = math.sqrt(math.fsum(value * value for value in centred) / (len(centred) - 1))
    return [value / (std + EPS) for value in centred]

"""`SampleFigures`: what metrics take of a completed rollout, a few numbers in place of its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.rollouts import RolloutCompleted, StopReason
from slime_events.algorithms.pass_rate import has_repetition
from slime_events.analysis.model.advantages import Mask, trained_tokens
from slime_events.core.trajectory import Trajectory


@dataclass(slots=True)
class SampleFigures:
    """length: response tokens; total: with the prompt. mask: see `Mask`. oldest: weight version in it. rounds:
    generations of a rollout in turns, 1 of any other. tool_seconds: in which it did not generate. log_prob: the
    engine's, mean over the trained tokens; None where there are none. reward, detail: as graded.
    """

    group: str
    length: int
    total: int
    mask: Mask
    is_truncated: bool
    repeats: bool
    oldest: int | None
    rounds: float
    tool_seconds: float
    log_prob: float | None
    raw_reward: float | None = None
    reward: float | None = None
    detail: dict[str, Any] | None = None

    @classmethod
    def of(cls, event: RolloutCompleted, made: Trajectory, rounds: int, tool_seconds: float) -> SampleFigures:
        """Of a rollout as it ended. A generate function may say `round_number`, `non_generation_time` and `raw_reward`
        in the sample's metadata.
        """
        said = event.metadata
        return cls(
            group=event.group,
            length=event.length,
            total=event.prompt_length + event.length,
            mask=event.length if made.loss_mask is None else made.loss_mask,
            is_truncated=event.stop is StopReason.LENGTH,
            repeats=has_repetition(event.text),
            oldest=min((span.version for span in event.spans), default=None),
            rounds=_number(said.get("round_number")) or rounds or 1,
            tool_seconds=_number(said.get("non_generation_time")) or tool_seconds,
            log_prob=_mean_log_prob(made),
            raw_reward=_number(said.get("raw_reward")),
        )

    @property
    def trained(self) -> int:
        """Response tokens that are trained on; slime's effective length."""
        return trained_tokens(self.mask)


def _mean_log_prob(trajectory: Trajectory) -> float | None:
    """Mean of the engine's log-probs over the trained tokens; None where there are none."""
    log_probs, mask = trajectory.log_probs, trajectory.loss_mask
    trained = log_probs if mask is None else log_probs[mask != 0]
    return float(np.mean(trained, dtype=np.float64)) if len(trained) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None

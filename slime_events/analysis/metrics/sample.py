"""`SampleFigures`: the few numbers of a completed rollout that metrics need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from schemas.doc import doc
from schemas.rollouts import RolloutCompleted, StopReason
from slime_events.algorithms.pass_rate import has_repetition
from slime_events.core.tokens.trajectory import Trajectory
from slime_events.model.advantages import Mask, trained_tokens


@dataclass(slots=True)
class SampleFigures:
    """Figures of a completed rollout."""

    group: Annotated[str, doc("id of the group")]
    length: Annotated[int, doc("response length [tokens]")]
    total: Annotated[int, doc("length with the prompt [tokens]")]
    mask: Annotated[Mask, doc("trained tokens, see `Mask`")]
    is_truncated: Annotated[bool, doc("whether the length limit truncated it")]
    repeats: Annotated[bool, doc("whether its text repeats itself")]
    oldest: Annotated[int | None, doc("oldest weight version in it")]
    rounds: Annotated[float, doc("generations, for a rollout in turns; otherwise 1")]
    tool_seconds: Annotated[float, doc("time in which it did not generate [s]")]
    log_prob: Annotated[float | None, doc("engine's mean log-prob over the trained tokens; None if there are none")]
    raw_reward: Annotated[float | None, doc("reward that the generate function gave")] = None
    reward: Annotated[float | None, doc("reward as graded")] = None
    detail: Annotated[dict[str, Any] | None, doc("dict that the grader returned")] = None

    @classmethod
    def of(cls, event: RolloutCompleted, trajectory: Trajectory, rounds: int, tool_seconds: float) -> SampleFigures:
        """Return the figures of a rollout that ended. A generate function may set `round_number`, `non_generation_time`
        and `raw_reward` in the sample's metadata.
        """
        metadata = event.metadata
        return cls(
            group=event.group,
            length=event.length,
            total=event.prompt_length + event.length,
            mask=event.length if trajectory.loss_mask is None else trajectory.loss_mask,
            is_truncated=event.stop is StopReason.LENGTH,
            repeats=has_repetition(event.text),
            oldest=min((span.version for span in event.spans), default=None),
            rounds=_number(metadata.get("round_number")) or rounds or 1,
            tool_seconds=_number(metadata.get("non_generation_time")) or tool_seconds,
            log_prob=_mean_log_prob(trajectory),
            raw_reward=_number(metadata.get("raw_reward")),
        )

    @property
    def trained(self) -> int:
        """Number of trained response tokens: slime's effective length."""
        return trained_tokens(self.mask)


def _mean_log_prob(trajectory: Trajectory) -> float | None:
    """Return the engine's mean log-prob over the trained tokens; None if there are none."""
    log_probs, mask = trajectory.log_probs, trajectory.loss_mask
    trained = log_probs if mask is None else log_probs[mask != 0]
    return float(np.mean(trained, dtype=np.float64)) if len(trained) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None

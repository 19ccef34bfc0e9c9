"""Rows of metrics of recorded and made up runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schemas.arrays import pack, unpack
from schemas.batches import BatchSealed
from schemas.event import Event
from schemas.ids import group_of
from schemas.rollouts import WeightSpan
from slime_events.analysis.metrics.fold import MetricsFold, MetricsRow
from slime_events.core.config.metrics import MetricsSettings
from slime_events.core.config.settings import TrainSettings
from storage.log import Recorded
from tests import made
from tests.cli.small_run import recorded

EVERYTHING = MetricsSettings(
    log_passrate=True, log_multi_turn=True, log_reward_category="found", log_correct_samples=True
)


def rows(records: Iterable[Recorded], settings: TrainSettings | None = None) -> list[MetricsRow]:
    """Return the rows of a whole log."""
    fold = MetricsFold(settings or TrainSettings(), unpack)
    return [row for record in records if (row := fold.apply(record)) is not None]


def rows_of(events: Sequence[Event], settings: TrainSettings | None = None) -> list[MetricsRow]:
    """Return the rows of events that are a tenth of a second apart."""
    return rows(recorded(list(events)), settings)


def rollout(
    sample: str,
    log_probs: Sequence[float],
    reward: float,
    *,
    mask: Sequence[int] | None = None,
    detail: dict[str, object] | None = None,
    **fields: object,
) -> list[Event]:
    """A request, its completion and its reward; every token is of version 0."""
    count = len(log_probs)
    usual = {"prompt_length": 2, "spans": (WeightSpan(0, count, 0),)}
    loss_mask = None if mask is None else pack(mask, "int8")
    return [
        made.requested(sample, index=0, prompt=[1, 2], seed=5),
        made.completed(sample, range(count), log_probs, loss_mask=loss_mask, **usual | fields),
        made.assigned(sample, value=reward, grader="g", detail=detail),
    ]


def batch(step: int, rewards: dict[str, float]) -> BatchSealed:
    """Build a batch of these samples with their rewards, which are not normalised."""
    groups = tuple(dict.fromkeys(map(group_of, rewards)))
    values = tuple(rewards.values())
    return made.sealed(step, groups=groups, samples=tuple(rewards), rewards=values, raw_rewards=values, digest="")

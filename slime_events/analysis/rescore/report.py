"""`Report`: what would have been otherwise, as figures."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

VALUES = 12
"""Up to so many different rewards each has its own bar; more are cut into BINS equal stretches."""
BINS = 10


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of training samples. std: unbiased; mean, std: None for none. bars: (from, to, how many), both ends in.

    The bars of the two distributions of a report have the same ends.
    """

    count: int
    mean: float | None
    std: float | None
    bars: list[tuple[float, float, int]]


class Turned(msgspec.Struct, frozen=True, kw_only=True):
    """A group that would have changed sides. rewards: before and after, None where grading failed. reason: of the other
    verdict. step: whose batch it was in, or (accepted now) that was the next to be made.
    """

    group: str
    before: list[float | None]
    after: list[float | None]
    reason: str | None
    step: int


class Regraded(msgspec.Struct, frozen=True, kw_only=True):
    """A sample that is graded otherwise. before, after: None where grading failed, for the reason in `failure`."""

    sample: str
    before: float | None
    after: float | None
    failure: str = ""


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Training samples. otherwise: another reward, or one where there was none, or the reverse. failed: by kind."""

    graded: int
    otherwise: int
    failed_before: int
    failed: dict[str, int]
    examples: list[Regraded]


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """Decided training groups. beyond: rejected for a failed rollout or for staleness, whatever the rewards.

    by_fallback: the filter left it to what else there was; they are as they were. undecided: no verdict in the log yet.
    """

    decided: int
    accepted_before: int
    accepted_after: int
    beyond: int
    by_fallback: int
    undecided: int
    rejected_now: int
    accepted_now: int
    rejected_examples: list[Turned]
    accepted_examples: list[Turned]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was sealed. lost: its groups that would not have been accepted. offered: groups that would have been
    accepted when this step was the next to be made. advantages: samples (of groups that stay) with another advantage.
    ess_before, ess_after: Kish's effective sample size of the advantage weights of its `samples`, and of those of the
    groups that stay, `samples_after`.
    """

    step: int
    samples: int
    samples_after: int
    lost: int
    offered: int
    advantages: int
    ess_before: float
    ess_after: float

    @property
    def differs(self) -> bool:
        """Whether its batch or its advantages would have been otherwise."""
        return bool(self.lost or self.offered or self.advantages)


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation's mean, as it was said and as it would be."""

    dataset: str
    version: int
    before: float
    after: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """graders: name, source digest and samples of those who graded. unlike: batches of which the log's own settings do
    not give the normalised rewards that it holds (0 in every run that audit finds clean). without_kl: the advantages
    are compared without the KL in the reward, which the log does not hold.
    """

    run: str
    where: str
    changed: list[str]
    regraded: bool
    graders_before: list[tuple[str, str, int]]
    graders_after: list[tuple[str, str, int]]
    filter_before: str
    filter_after: str
    events: int
    samples: Samples
    groups: Groups
    rewards_before: Distribution
    rewards_after: Distribution
    steps: list[Step]
    evaluations: list[Evaluation]
    unlike: int
    without_kl: bool

    @property
    def first_difference(self) -> int | None:
        """The first step that would have been otherwise; None where all would have been as they were."""
        return next((step.step for step in self.steps if step.differs), None)

    @property
    def is_same(self) -> bool:
        """Whether nothing at all would have been otherwise."""
        same = not self.samples.otherwise and self.first_difference is None
        return same and not self.groups.rejected_now and not self.groups.accepted_now


def distributions(before: Sequence[float], after: Sequence[float]) -> tuple[Distribution, Distribution]:
    """Both over the same bars."""
    one, other = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    both = np.concatenate([one, other])
    values = np.unique(both)
    if not len(values):
        return _distribution(one, []), _distribution(other, [])
    if len(values) <= VALUES:
        ends = [(float(value), float(value)) for value in values]
    else:
        edges = np.linspace(values[0], values[-1], BINS + 1)
        ends = [(float(low), float(high)) for low, high in itertools.pairwise(edges)]
    return _distribution(one, ends), _distribution(other, ends)


def _distribution(values: np.ndarray, ends: Sequence[tuple[float, float]]) -> Distribution:
    if ends and ends[0][0] == ends[0][1]:
        counts = Counter(values.tolist())
        bars = [(low, high, counts[low]) for low, high in ends]
    else:
        edges = [low for low, _ in ends] + [high for _, high in ends[-1:]]
        found = np.histogram(values, bins=edges)[0].tolist() if ends else []
        bars = [(low, high, count) for (low, high), count in zip(ends, found, strict=True)]
    return Distribution(
        count=len(values),
        mean=float(values.mean()) if len(values) else None,
        std=float(values.std(ddof=1)) if len(values) > 1 else None,
        bars=bars,
    )

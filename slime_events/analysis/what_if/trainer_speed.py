"""`TrainerSpeed`: seconds of a training step, by the tokens that pass through the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from schemas.batches import BatchSealed
from schemas.doc import doc
from slime_events.analysis.what_if.figures import measured_steps
from slime_events.analysis.what_if.intervals import Interval, Load
from slime_events.analysis.what_if.least_squares import Fitted, fit
from slime_events.analysis.what_if.timed_rollouts import NANO
from slime_events.model import Run, Step


class TrainerSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a step with T tokens: `per_step + T (per_token + per_generating e)`; e: share with an engine at work."""

    per_step: Annotated[float, doc("fixed time [s]")]
    per_token: Annotated[float, doc("time per token [s]")]
    per_generating: Annotated[float, doc("further time per token while an engine generates [s]")]
    moving_only: Annotated[
        bool, doc("T counts only samples with a normalised reward other than 0: the trainer skips the others")
    ]
    error: Annotated[float, doc("mean absolute error of the fit, as a share of the mean time of a step")]
    fewest_tokens: Annotated[int, doc("fewest tokens of a step that were seen")]
    most_tokens: Annotated[int, doc("most tokens of a step that were seen")]

    def seconds(self, tokens: int, *, generating: bool) -> float:
        """Return the time of a step [s]."""
        return self.per_step + tokens * (self.per_token + (self.per_generating if generating else 0.0))

    def tokens(self, batch: BatchSealed, lengths: dict[str, int]) -> int:
        """Return the tokens of a batch that count. lengths: prompt and response of each sample [tokens]."""
        pairs = zip(batch.samples, batch.rewards, strict=True)
        return sum(lengths.get(name, 0) for name, reward in pairs if reward != 0.0 or not self.moving_only)


def training_times(run: Run) -> list[Interval]:
    """Return begin and end of each step's training [s, UTC]."""
    committed = [step.committed for step in run.steps.values() if step.committed is not None]
    return [(done.at * NANO - sum(done.event.seconds.values()), done.at * NANO) for done in committed]


def fit_trainer(run: Run, generating: Sequence[Interval], *, skips: bool) -> TrainerSpeed:
    """Return the speed that fits the measured steps.

    generating: times of all rollouts [s, UTC]. skips: the settings let the trainer skip samples without an advantage.
    If the tokens of all samples fit better, those count.
    """
    steps = [step for step, _, _ in measured_steps(run)]
    lengths = {name: total_length(run, name) for step in steps for name in step.sealed.event.samples}
    seconds = np.array([_seconds(step) for step in steps])
    ends = np.array([step.committed.at * NANO for step in steps if step.committed is not None])
    share = Load(generating).busy(ends - seconds, ends) / np.maximum(seconds, 1e-9)

    def fitted(*, moving_only: bool) -> tuple[Fitted, list[int]]:
        counting = TrainerSpeed(
            per_step=0, per_token=0, per_generating=0, moving_only=moving_only, error=0, fewest_tokens=0, most_tokens=0
        )
        tokens = [counting.tokens(step.sealed.event, lengths) for step in steps]
        counts = np.array(tokens, np.float64)
        return fit(np.stack([np.ones(len(steps)), counts, counts * share], axis=1), seconds), tokens

    (best, tokens), moving_only = fitted(moving_only=False), False
    if skips:
        moving, of_moving = fitted(moving_only=True)
        if moving.squares < best.squares:
            best, tokens, moving_only = moving, of_moving, True
    return TrainerSpeed(
        per_step=best.coefficients[0],
        per_token=best.coefficients[1],
        per_generating=best.coefficients[2],
        moving_only=moving_only,
        error=best.error / float(seconds.mean()),
        fewest_tokens=min(tokens),
        most_tokens=max(tokens),
    )


def total_length(run: Run, sample: str) -> int:
    """Return the tokens of prompt and response of a sample; 0 if the run does not have its rollout."""
    record = run.samples.get(sample)
    return 0 if record is None or record.completed is None else record.completed.event.prompt_length + record.length


def _seconds(step: Step) -> float:
    assert step.committed is not None
    return sum(step.committed.event.seconds.values())

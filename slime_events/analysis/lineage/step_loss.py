"""`StepLoss`: how much each sample of a step counts in its loss, as far as the log and the settings say."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

from schemas.doc import doc
from schemas.errors import TrainerError
from slime_events.algorithms.packing import optimizer_steps
from slime_events.analysis.lineage.advantages import TrainedSample, make_advantages
from slime_events.analysis.lineage.lineage import Advantage, mask_of
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.tokens.trajectory import Fetch
from slime_events.core.training.batch_columns import BatchCredit, BatchMasks
from slime_events.model import Run, Step

PACKING = (
    "use_dynamic_batch_size",
    "max_tokens_per_gpu",
    "micro_batch_size",
    "tree_packing",
    "balance_data",
    "balance_by_flops",
)
"""Settings of the trainer that pack samples into micro batches."""
_REWEIGHS = ("use_tis", "custom_tis_function_path", "use_opsm")
"""Settings of the algorithm that weigh or leave out tokens by log-probs of the trainer."""
_DENOMINATORS = "rollout_mask_sums"


class Normalisation(enum.StrEnum):
    """The unit that the loss averages."""

    ROLLOUTS = "rollouts"
    TOKENS = "tokens"
    OWN = "own"
    """A user's function, or a user's column of the batch, decides."""


class SampleShare(msgspec.Struct, frozen=True, kw_only=True):
    """A sample's part in the loss."""

    trained: Annotated[int | None, doc("response tokens that are trained on; None: the log has no such rollout")]
    optimizer_step: Annotated[int | None, doc("index of its optimizer step, from 0; None: left over, or unknown")]
    share: Annotated[float | None, doc("its part of the weights of its optimizer step's loss; None: unknown")]
    advantage: Annotated[Advantage | None, doc("its advantage; None if it is not trained on, or unknown")]


class StepLoss(msgspec.Struct, frozen=True, kw_only=True):
    """The part of each sample in a step's loss, by the settings in force at the end of the log."""

    normalisation: Annotated[Normalisation, doc("unit that the loss averages")]
    optimizer_steps: Annotated[int, doc("number of optimizer steps; 0 if the batch fills none, or it is unknown")]
    reweighed_by: Annotated[tuple[str, ...], doc("settings that weigh tokens by figures that the log does not have")]
    samples: Annotated[tuple[SampleShare, ...], doc("samples in training order")]
    packing: Annotated[
        dict[str, bool | int | None], doc("settings that pack micro batches; the log does not have those")
    ]


class _Part(NamedTuple):
    rollout: str
    trained: int | None


def view_step_loss(run: Run, step: Step, settings: TrainSettings, fetch: Fetch) -> StepLoss:
    """Return how much each sample counts. run: has the samples of the batch. fetch: returns an array's numbers."""
    batch, algorithm = step.sealed.event, settings.algorithm
    masks, credits = BatchMasks(batch, fetch), BatchCredit(batch, fetch)
    parts, samples = [], []
    for name, reward in zip(batch.samples, batch.rewards, strict=True):
        record = run.samples.get(name)
        done = record.completed.event if record and record.completed else None
        if done is None:
            parts.append(_Part(name, None))
            continue
        mask = mask_of(done, fetch, masks)
        parts.append(_Part(done.rollout or name, int((mask != 0).sum())))
        samples.append(TrainedSample(name, reward, mask, credits.of(name, done.credit, fetch)))
    advantages = make_advantages(samples, algorithm) if len(samples) == len(parts) else {}
    own = _DENOMINATORS in {column.name for column in batch.columns}
    normalisation = Normalisation.OWN if own else _normalisation(algorithm)
    of_sample = _optimizer_steps(parts, settings.trainer)
    shares = _shares(parts, of_sample, normalisation)
    functions = step.committed.event.functions if step.committed else {}
    return StepLoss(
        normalisation=normalisation,
        optimizer_steps=len({index for index in of_sample if index is not None}),
        reweighed_by=(*(name for name in _REWEIGHS if getattr(algorithm, name) and name not in functions), *functions),
        samples=tuple(
            SampleShare(trained=part.trained, optimizer_step=index, share=share, advantage=advantages.get(name))
            for name, part, index, share in zip(batch.samples, parts, of_sample, shares, strict=True)
        ),
        packing={name: getattr(settings.trainer, name) for name in PACKING},
    )


def _normalisation(algorithm: AlgorithmSettings) -> Normalisation:
    if algorithm.loss_type == "custom_loss" or algorithm.custom_pg_loss_reducer_function_path:
        return Normalisation.OWN
    return Normalisation.TOKENS if algorithm.calculate_per_token_loss else Normalisation.ROLLOUTS


def _optimizer_steps(parts: Sequence[_Part], trainer: TrainerSettings) -> list[int | None]:
    """Return the optimizer step of each sample; None if it fills none, or a rollout is unknown."""
    numbers: list[int | None] = [None] * len(parts)
    if not parts or any(part.trained is None for part in parts):
        return numbers
    rollouts = [part.rollout for part in parts]
    try:
        steps = optimizer_steps(rollouts, trainer.global_batch_size, trainer.num_steps_per_rollout)
    except TrainerError:
        return numbers
    for number, step in enumerate(steps):
        for index in step.indices:
            numbers[index] = number
    return numbers


def _shares(
    parts: Sequence[_Part], of_sample: Sequence[int | None], normalisation: Normalisation
) -> list[float | None]:
    """Return each sample's part of the weights of its optimizer step, as `StepColumns.weight` of the trainer."""
    if normalisation is Normalisation.OWN or any(part.trained is None for part in parts):
        return [None] * len(parts)
    trained = [part.trained or 0 for part in parts]
    of_rollout: Counter[str] = Counter()
    for part, tokens in zip(parts, trained, strict=True):
        of_rollout[part.rollout] += tokens
    weights = [
        float(tokens) if normalisation is Normalisation.TOKENS else tokens / max(of_rollout[part.rollout], 1)
        for part, tokens in zip(parts, trained, strict=True)
    ]
    sums = [0.0] * (1 + max((number for number in of_sample if number is not None), default=-1))
    for number, weight in zip(of_sample, weights, strict=True):
        if number is not None:
            sums[number] += weight
    return [
        None if number is None else (weight / sums[number] if sums[number] else 0.0)
        for number, weight in zip(of_sample, weights, strict=True)
    ]

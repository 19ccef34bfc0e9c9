"""`what_if` predicts a recorded run under other policies; `predict` does it from records that are already read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.errors import InvalidValue
from schemas.runs import RunFailed, RunFinished
from slime_events.analysis.what_if.chunks import ChunkTimes
from slime_events.analysis.what_if.figures import Figures, figures_of
from slime_events.analysis.what_if.measurements import Measurements, measure
from slime_events.analysis.what_if.policy import Policy, policies
from slime_events.analysis.what_if.prediction import Prediction, WhatIf
from slime_events.analysis.what_if.unknowns import beyond, unknowns
from slime_events.analysis.what_if.virtual_run import Simulated, simulate
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun
from slime_events.model import Run, read_run


async def what_if(opened: OpenedRun, values: Mapping[str, Sequence[Any]], seed: int = 0) -> WhatIf:
    """Predict an opened run under all combinations of these values, by the fields of `Policy`.

    Raises InvalidValue if the run has too little or cannot be simulated, or a value is impossible; StorageError,
    LogDamaged, ArchiveDamaged, SchemaError.
    """
    chunks = ChunkTimes(opened.settings.engine.chunk)
    run = await read_run(opened.log, chunks.apply)
    return await asyncio.to_thread(predict, run, opened.settings, values, seed, opened.where, chunks)


def predict(
    run: Run,
    settings: TrainSettings,
    values: Mapping[str, Sequence[Any]],
    seed: int = 0,
    where: str = "",
    chunks: ChunkTimes | None = None,
) -> WhatIf:
    """Predict a run under all combinations of these values. chunks: those of the run. Raises InvalidValue."""
    base = Policy.of(settings)
    chosen = policies(base, dict(values))
    measured = measure(run, settings, chunks or ChunkTimes(base.chunk_tokens))
    _check_chunks(measured, chosen, base)
    seen = figures_of(run, base.rollout_num_engines, measured.graders_of(base.rm_workers))
    own = _figures(simulate(measured, base, seed), measured, base)
    predictions = []
    for policy in chosen:
        if policy == base:
            continue
        simulated = simulate(measured, policy, seed)
        figures = _figures(simulated, measured, policy)
        predictions.append(
            Prediction(
                changed=policy.changed(base),
                figures=figures,
                step_seconds_range=_range(measured, policy, base, seed, figures.step_seconds),
                beyond=beyond(simulated, measured, policy, base),
            )
        )
    unfinished = sum(any(s.completed is None for s in group.samples.values()) for group in run.groups.values())
    ends = run.lifetime[-1:]
    return WhatIf(
        run=run.run,
        where=where,
        steps=measured.steps,
        ended=any(isinstance(entry.event, RunFinished | RunFailed) for entry in ends),
        seed=seed,
        seen=seen,
        own=own,
        predictions=tuple(predictions),
        engines=measured.engines,
        trainer=measured.trainer,
        delays=measured.delays,
        unknown=tuple(unknowns(measured, seen, own, unfinished, chosen)),
    )


def _figures(simulated: Simulated, measured: Measurements, policy: Policy) -> Figures:
    return figures_of(simulated.run, policy.rollout_num_engines, measured.graders_of(policy.rm_workers))


def _range(measured: Measurements, policy: Policy, base: Policy, seed: int, step: float) -> tuple[float, float] | None:
    """Return the least and the most step time under a policy, by the times of a chunk that the run allows [s].

    step: step time with the most likely time of a chunk. None if the policy has the run's chunks.
    """
    if policy.chunk_tokens == base.chunk_tokens:
        return None
    measurements = [measured.with_engines(speed) for speed in measured.by_chunk]
    steps = [_figures(simulate(each, policy, seed), each, policy).step_seconds for each in measurements]
    return min(step, *steps), max(step, *steps)


def _check_chunks(measured: Measurements, chosen: Sequence[Policy], base: Policy) -> None:
    """Raise InvalidValue if smaller chunks are asked for, but the run has not shown what a chunk costs."""
    if not measured.engines.chunks and any(policy.chunk_tokens < base.chunk_tokens for policy in chosen):
        raise InvalidValue(
            f"--chunk-tokens: the run appended no chunk of {base.chunk_tokens:,} tokens or more, so the time of a "
            "chunk is not known: predict from a run with smaller chunks, or leave the flag out"
        )

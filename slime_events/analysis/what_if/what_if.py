"""`what_if` predicts a recorded run under other policies; `predict` does it from records that are already read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.errors import InvalidValue
from schemas.runs import RunFailed, RunFinished
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
    run = await read_run(opened.log)
    return await asyncio.to_thread(predict, run, opened.settings, values, seed, opened.where)


def predict(
    run: Run, settings: TrainSettings, values: Mapping[str, Sequence[Any]], seed: int = 0, where: str = ""
) -> WhatIf:
    """Predict a run under all combinations of these values. Raises InvalidValue."""
    base = Policy.of(settings)
    chosen = policies(base, dict(values))
    measured = measure(run, settings)
    _check_chunks(measured, chosen, base)
    seen = figures_of(run, base.rollout_num_engines, measured.graders_of(base.rm_workers))
    own = _figures(simulate(measured, base, seed), measured, base)
    predictions = []
    for policy in chosen:
        if policy == base:
            continue
        simulated = simulate(measured, policy, seed)
        figures = _figures(simulated, measured, policy)
        extrapolated = beyond(simulated, measured, policy, base)
        predictions.append(Prediction(changed=policy.changed(base), figures=figures, beyond=extrapolated))
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
        unknown=tuple(unknowns(measured, seen, own, unfinished)),
    )


def _figures(simulated: Simulated, measured: Measurements, policy: Policy) -> Figures:
    return figures_of(simulated.run, policy.rollout_num_engines, measured.graders_of(policy.rm_workers))


def _check_chunks(measured: Measurements, chosen: Sequence[Policy], base: Policy) -> None:
    """Raise InvalidValue if another chunk size is asked for, but the run has not shown what a chunk costs."""
    if not measured.engines.with_chunks and any(policy.chunk_tokens != base.chunk_tokens for policy in chosen):
        raise InvalidValue(
            f"--chunk-tokens: no rollout of the run is longer than its chunks of {base.chunk_tokens} tokens, so the "
            "time of a chunk is not known; leave the flag out"
        )

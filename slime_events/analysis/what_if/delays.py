"""`Delays`: the times between an event and what follows from it, as medians over a run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
import numpy as np

from schemas.doc import doc
from slime_events.analysis.what_if.figures import measured_steps
from slime_events.analysis.what_if.grader_speed import gradings_of, wait_of
from slime_events.analysis.what_if.least_squares import fit
from slime_events.analysis.what_if.timed_rollouts import NANO, TimedRollout
from slime_events.core.config.settings import TrainSettings
from slime_events.model import Run, Step


class Delays(msgspec.Struct, frozen=True, kw_only=True):
    """Times that are neither generation, grading nor training [s]."""

    to_request: Annotated[float, doc("from a commit to the requests that it allows")] = 0.0
    to_begin: Annotated[float, doc("from a request, or the weights that it needs, to the begin of its rollout")] = 0.0
    between: Annotated[float, doc("between the begins of two rollouts on one engine that were requested together")] = (
        0.0
    )
    to_grade: Annotated[float, doc("from the end of a rollout to the begin of its grading, if a grader is free")] = 0.0
    to_seal: Annotated[float, doc("from the last reward of a batch to the batch")] = 0.0
    to_commit: Annotated[float, doc("from a batch to its commit, without the seconds of training")] = 0.0
    to_activate: Annotated[float, doc("from a publication to its activation by an engine")] = 0.0
    loading: Annotated[float, doc("part of it in which the engine generates nothing")] = 0.0
    saving: Annotated[float, doc("for a checkpoint")] = 0.0


def measure_delays(run: Run, rollouts: Sequence[TimedRollout], settings: TrainSettings, gradings: int) -> Delays:
    """Return the delays of a run. gradings: most at once."""
    steps = [step for step, _, _ in measured_steps(run)]
    activations = [entry.event for version in run.versions.values() for entry in version.activations]
    activations = [event for event in activations if event.version > 0 and not event.returns]
    saves = [version.checkpoint.event.seconds for version in run.versions.values() if version.checkpoint is not None]
    to_begin, between = _begins(run, rollouts, settings.engine.sglang_server_concurrency)
    return Delays(
        to_request=_median(_to_request(run, rollouts)),
        to_begin=to_begin,
        between=between,
        to_grade=wait_of(gradings_of(run), gradings),
        to_seal=_median(_to_seal(run, steps, settings.rollout.max_staleness)),
        to_commit=_median(_to_commit(run, steps)),
        to_activate=_median(event.lag for event in activations),
        loading=_median(event.seconds for event in activations),
        saving=_median(saves),
    )


def _median(values: Iterable[float]) -> float:
    """Return the median; 0 for none. Clocks of several machines may differ, so negative values count as 0."""
    numbers = [max(0.0, value) for value in values]
    return statistics.median(numbers) if numbers else 0.0


def _to_request(run: Run, rollouts: Sequence[TimedRollout]) -> list[float]:
    first: dict[int, float] = {}
    for rollout in rollouts:
        first[rollout.version] = min(rollout.requested, first.get(rollout.version, rollout.requested))
    commits = {number: version.committed for number, version in run.versions.items()}
    return [at - done.at * NANO for number, at in first.items() if (done := commits.get(number)) is not None]


def _begins(run: Run, rollouts: Sequence[TimedRollout], room: int) -> tuple[float, float]:
    """Return the delay of the first rollout of a burst, and that between two of them.

    A burst is all rollouts of one engine that the same commit allowed. room: most rollouts of an engine at once. Only
    the first ones of a burst count: later ones wait for the end of others.
    """
    ready = {
        (number, entry.event.engine): entry.at * NANO
        for number, version in run.versions.items()
        for entry in version.activations
    }
    bursts: dict[tuple[int, str], list[float]] = {}
    for rollout in rollouts:
        since = max(rollout.requested, ready.get((rollout.version, rollout.engine), 0.0))
        bursts.setdefault((rollout.version, rollout.engine), []).append(max(0.0, rollout.begin - since))
    waits = [(place, wait) for burst in bursts.values() for place, wait in enumerate(sorted(burst)[:room])]
    if not waits:
        return 0.0, 0.0
    table = np.array(waits, np.float64)
    first, each = fit(np.stack([np.ones(len(table)), table[:, 0]], axis=1), table[:, 1]).coefficients
    return first, each


def _to_seal(run: Run, steps: Sequence[Step], max_staleness: int) -> list[float]:
    """Return, per step, the time since the batch was complete and the steps before allowed it."""
    waits = []
    for step in steps:
        rewards = [run.samples[name].reward for name in step.sealed.event.samples if name in run.samples]
        at = [reward.at for reward in rewards if reward is not None]
        before = run.steps.get(step.step - 1 - max_staleness)
        at += [before.committed.at] if before is not None and before.committed is not None else []
        waits += [(step.sealed.at - max(at)) * NANO] if at else []
    return waits


def _to_commit(run: Run, steps: Sequence[Step]) -> list[float]:
    waits = []
    for step in steps:
        before = run.steps.get(step.step - 1)
        assert step.committed is not None
        begin = step.sealed.at
        if before is not None and before.committed is not None:
            begin = max(begin, before.committed.at)
        waits.append((step.committed.at - begin) * NANO - sum(step.committed.event.seconds.values()))
    return waits

"""`Figures`: step time, idle shares, staleness and length bias of a run, recorded or simulated."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np

from schemas.doc import doc
from schemas.event import Purpose
from schemas.groups import GroupRejected
from schemas.runs import RunResumed
from slime_events.analysis.what_if.intervals import Load
from slime_events.analysis.what_if.timed_rollouts import NANO, grading, timed_rollouts
from slime_events.model import Run, Step


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a run's steps from the second on; the first step warms up."""

    steps: Annotated[int, doc("number of measured steps")]
    step_seconds: Annotated[float, doc("mean time between two commits [s]")]
    engines_idle: Annotated[float, doc("share of the time in which an engine generates nothing, mean over engines")]
    graders_idle: Annotated[
        float | None, doc("the same of grader processes; None if they grade nothing, because the engines' workers do")
    ]
    trainer_idle: Annotated[float, doc("share of the time in which the trainer has nothing to train or save")]
    staleness_mean: Annotated[float, doc("mean over the trained samples of the versions that they are behind")]
    staleness_max: Annotated[int, doc("most versions that a trained sample is behind")]
    length_bias: Annotated[
        float,
        doc(
            "mean over the steps of the mean response length in the batch, relative to all groups that were open when "
            "it was sealed; -0.1: the trained samples are 10 % shorter"
        ),
    ]
    tokens_per_s: Annotated[float, doc("response tokens that are trained on, per second")]


def measured_steps(run: Run) -> list[tuple[Step, float, float]]:
    """Return committed steps with the times of the commits before and of their own [s, UTC].

    The first step is left out, and so are steps during which the run was resumed: they have startup and downtime.
    """
    committed = sorted((step for step in run.steps.values() if step.committed is not None), key=lambda step: step.step)
    resumed = [entry.at for entry in run.lifetime if isinstance(entry.event, RunResumed)]
    measured = []
    for before, step in pairwise(committed):
        assert before.committed is not None
        assert step.committed is not None
        begin, end = before.committed.at, step.committed.at
        if not any(begin <= at <= end for at in resumed):
            measured.append((step, begin * NANO, end * NANO))
    return measured


def figures_of(run: Run, engines: int, graders: int) -> Figures:
    """Return the figures of a run with at least two committed steps. engines, graders: number of each."""
    measured = measured_steps(run)
    begins, ends = [begin for _, begin, _ in measured], [end for _, _, end in measured]
    seconds = sum(ends) - sum(begins)
    steps = [step for step, _, _ in measured]
    behind = [
        step.step - oldest
        for step in steps
        for name in step.sealed.event.samples
        if (oldest := _oldest(run, name)) is not None
    ]
    graded = [times for sample in run.samples.values() if (times := grading(sample)) is not None]
    tokens = sum(
        run.samples[name].length for step in steps for name in step.sealed.event.samples if name in run.samples
    )
    return Figures(
        steps=len(steps),
        step_seconds=seconds / len(steps),
        engines_idle=1.0 - _generating(run, begins, ends) / (seconds * engines),
        graders_idle=1.0 - float(Load(graded).covered(begins, ends).sum()) / (seconds * graders) if graded else None,
        trainer_idle=1.0 - min(1.0, _training(run, steps) / seconds),
        staleness_mean=statistics.fmean(behind) if behind else 0.0,
        staleness_max=max(behind, default=0),
        length_bias=_length_bias(run, {step.step for step in steps}),
        tokens_per_s=tokens / seconds,
    )


def _oldest(run: Run, sample: str) -> int | None:
    record = run.samples.get(sample)
    return min((span.version for span in record.spans), default=None) if record else None


def _generating(run: Run, begins: list[float], ends: list[float]) -> float:
    """Return the time in which each engine generated, summed over engines [s]."""
    by_engine: dict[str, list[tuple[float, float]]] = {}
    for rollout in timed_rollouts(run):
        by_engine.setdefault(rollout.engine, []).append((rollout.begin, rollout.end))
    return sum(float(Load(times).busy(begins, ends).sum()) for times in by_engine.values())


def _training(run: Run, steps: list[Step]) -> float:
    seconds = 0.0
    for step in steps:
        assert step.committed is not None
        seconds += sum(step.committed.event.seconds.values())
        version = run.versions.get(step.committed.event.version)
        if version is not None and version.checkpoint is not None:
            seconds += version.checkpoint.event.seconds
    return seconds


def _length_bias(run: Run, steps: set[int]) -> float:
    """Return the mean bias of these steps, by one pass over the requests, rejections and batches of the log.

    A group with a sample that has not ended does not count: its length is not known.
    """
    changes: list[tuple[int, int, str]] = []  # (position, +1 or -1, group)
    lengths: dict[str, tuple[int, int]] = {}  # group -> (tokens, samples)
    for group in run.groups.values():
        members = list(group.samples.values())
        if group.prompt is None or group.prompt.event.purpose is not Purpose.TRAIN or not members:
            continue
        if any(sample.completed is None for sample in members):
            continue
        lengths[group.group] = sum(sample.length for sample in members), len(members)
        changes.append((min(sample.requests[0].position for sample in members if sample.requests), 1, group.group))
        if group.verdict is not None and isinstance(group.verdict.event, GroupRejected):
            changes.append((group.verdict.position, -1, group.group))
    changes.sort()
    biases, place, tokens, samples = list[float](), 0, 0, 0
    for step in sorted(run.steps.values(), key=lambda step: step.sealed.position):
        while place < len(changes) and changes[place][0] < step.sealed.position:
            _, sign, name = changes[place]
            tokens, samples, place = tokens + sign * lengths[name][0], samples + sign * lengths[name][1], place + 1
        batch = [lengths[name] for name in step.sealed.event.groups if name in lengths]
        trained, count = sum(length for length, _ in batch), sum(number for _, number in batch)
        if step.step in steps and count and tokens > 0:
            biases.append((trained / count) / (tokens / samples) - 1.0)
        tokens, samples = tokens - trained, samples - count
    return float(np.mean(biases)) if biases else 0.0

"""`MetricsFold`: slime's metrics of a run, a row per event that gives any. Pure: loggers only write the rows."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Annotated

from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.doc import doc
from schemas.evals import EvalCompleted
from schemas.event import Event, Purpose
from schemas.groups import GroupRejected, RejectionCause
from schemas.ids import group_of, is_of_evaluation
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutProgressed, RolloutRequested, RolloutReturned
from schemas.runs import RunResumed, RunStarted
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded, TurnRole
from schemas.weights import WeightsActivated
from slime_events.algorithms.pass_rate import drop_metrics
from slime_events.analysis.metrics.rollouts import (
    Values,
    batch_metrics,
    generation_metrics,
    multi_turn_metrics,
    pass_rates,
    prefixed,
    sample_metrics,
)
from slime_events.analysis.metrics.sample import SampleFigures
from slime_events.analysis.metrics.steps import critic_metrics, train_metrics, trainer_metrics
from slime_events.core.config.settings import TrainSettings
from slime_events.core.tokens.trajectory import Fetch, Trajectories
from storage.log import Recorded

NANO = 1e-9
ROLLOUT, TRAIN, EVAL = "rollout/step", "train/step", "eval/step"
AXES = {"train": TRAIN, "eval": EVAL, **dict.fromkeys(("rollout", "perf", "passrate", "multi_turn"), ROLLOUT)}
"""Axis of each metric, by the first part of its name."""


def axis_of(name: str) -> str:
    """Return the metric that counts the steps of a metric."""
    return AXES[name.partition("/")[0]]


def _named(metrics: Values, prefix: str) -> Values:
    """Return a user's metrics. Names outside slime's parts get the prefix."""
    return {name if name.partition("/")[0] in AXES else prefix + name: value for name, value in metrics.items()}


@dataclass(frozen=True, slots=True)
class MetricsRow:
    """Metrics from one event."""

    position: Annotated[int, doc("position of the event")]
    at: Annotated[int, doc("UTC of the event [ns]")]
    values: Annotated[Values, doc("values by name, with the axes' values")]


class MetricsFold:
    """Folds a run's log, from its first event on. fetch: reads the numbers of an array.

    Rows follow from the log and the settings alone, so every fold gives the same rows. For a run that follows another,
    rows cover its own log only.
    """

    def __init__(self, settings: TrainSettings, fetch: Fetch) -> None:
        self._settings = settings
        self._running = Trajectories(fetch)
        self._generations, self._tool_seconds = Counter[str](), defaultdict[str, float](float)
        self._requested = defaultdict[str, list[str]](list)
        self._completed = defaultdict[str, dict[str, SampleFigures]](dict)
        self._dropped: list[str] = []
        self._returned: dict[int, Values] = {}
        self._begun_at = 0
        self._requested_at: int | None = None
        self._committed_at: int | None = None
        self._refused_batches = 0

    def apply(self, recorded: Recorded) -> MetricsRow | None:
        """Fold in one event, and return its row, if any."""
        event, at = recorded.envelope.event, recorded.envelope.at
        match event:
            case BatchSealed() if event.samples:
                values = self._sealed(event, at)
            case StepCommitted():
                values = self._commit(event, at)
            case CheckpointSaved():
                step = max(0, event.version - 1)
                values = {"perf/save_model_time": event.seconds, ROLLOUT: self._rollout_step(step)}
            case EvalCompleted(log_function=""):
                values = self._evaluated(event)
            case RolloutReturned(evaluation=True) if event.metrics:
                values = _named(event.metrics, "eval/") | {EVAL: self._rollout_step(event.step)}
            case _:
                self._take(event, at, recorded.position)
                return None
        return MetricsRow(recorded.position, at, values)

    def _take(self, event: Event, at: int, position: int) -> None:
        match event:
            case RolloutReturned(evaluation=False):
                self._returned[event.step] = event.metrics
            case RolloutRequested() if event.purpose is not Purpose.CALL:
                if event.attempt == 0:
                    self._requested[event.group].append(event.sample)
                self._running.apply(event, position)
                if event.purpose is Purpose.TRAIN:
                    self._requested_at = self._requested_at or at
            case RolloutProgressed():
                self._running.apply(event, position)
            case RolloutCompleted():
                self._complete(event, position)
            case TurnRecorded():
                if event.role is TurnRole.TOOL:
                    self._tool_seconds[event.sample] += event.seconds
                else:
                    self._generations[event.sample] += 1
            case RewardAssigned():
                if (figures := self._completed.get(event.group, {}).get(event.sample)) is not None:
                    figures.reward, figures.detail = event.value, event.detail
            case GroupRejected():
                if event.cause is RejectionCause.FILTER:
                    self._dropped.append(event.reason)
                self._forget(event.group)
            case EvalCompleted():  # a user's log function replaces slime's
                self._evaluated(event)
            case WeightsActivated():
                self._refused_batches += event.refused_batches
            case RunStarted() | RunResumed():
                self._begun_at, self._requested_at, self._committed_at = at, None, None

    def _complete(self, event: RolloutCompleted, position: int) -> None:
        self._running.apply(event, position)
        trajectory, rollout = self._running.by_sample.get(event.sample), event.rollout or event.sample
        if trajectory is not None and event.group in self._requested:  # else the group was decided without this sample
            turns = self._generations[rollout], self._tool_seconds[rollout]
            self._completed[event.group][event.sample] = SampleFigures.of(event, trajectory, *turns)
        self._running.forget((event.sample,))
        if rollout == event.sample:  # its further samples come before it, and share its turns
            self._generations.pop(rollout, None)
            self._tool_seconds.pop(rollout, None)

    def _sealed(self, event: BatchSealed, at: int) -> Values:
        settings, shown = self._settings, self._settings.metrics
        completed = [self._completed.get(group_of(sample), {}).get(sample) for sample in event.samples]
        samples = [figures for figures in completed if figures is not None]
        samples = samples if len(samples) == len(event.samples) else []
        values = prefixed("rollout/", batch_metrics(event, samples, settings))
        values |= _named(self._returned.pop(event.step, {}), "rollout/")
        if not event.log_function:
            values |= {name: float(groups) for name, groups in drop_metrics(self._dropped).items()}
        if shown.log_passrate:
            values |= prefixed("passrate/", pass_rates(map(group_of, event.samples), event.raw_rewards))
        if samples and not event.log_function:
            seconds = max(0, at - (self._requested_at or self._begun_at)) * NANO
            gpus = settings.engine.rollout_gpus
            values |= prefixed("perf/", generation_metrics(samples, seconds, gpus))
        if samples and shown.log_multi_turn:
            longest = settings.rollout.rollout_max_response_len
            values |= prefixed("multi_turn/", multi_turn_metrics(samples, longest))
        self._dropped, self._begun_at, self._requested_at = [], at, None
        for group in event.groups:
            self._forget(group)
        return values | {ROLLOUT: self._rollout_step(event.step)}

    def _commit(self, event: StepCommitted, at: int) -> Values:
        before, self._committed_at = self._committed_at, at
        busy = sum(event.seconds.values())
        waited = None if before is None else max(0.0, (at - before) * NANO - busy)
        values = prefixed("train/", train_metrics(event)) | prefixed("perf/", trainer_metrics(event, waited))
        values |= prefixed("rollout/", critic_metrics(event))
        if self._refused_batches:
            values["perf/refused_batches"] = float(self._refused_batches)
            self._refused_batches = 0
        first = event.step * (self._settings.trainer.num_steps_per_rollout or 1)
        return values | {TRAIN: first, ROLLOUT: self._rollout_step(event.step)}

    def _evaluated(self, event: EvalCompleted) -> Values:
        dataset, settings = event.dataset, self._settings
        groups = [group for group in self._requested if is_of_evaluation(group, dataset, event.version)]
        completed = {name: figures for group in groups for name, figures in self._completed.get(group, {}).items()}
        values, samples = {f"eval/{dataset}": event.mean}, list(completed.values())
        if samples:
            of_samples = sample_metrics(samples, [sample.reward or 0.0 for sample in samples], settings)
            values |= prefixed(f"eval/{dataset}/", of_samples)
            values[f"eval/{dataset}-truncated_ratio"] = of_samples["truncated_ratio"]
        if settings.metrics.log_passrate:
            # A sample that was not generated or graded counts as a wrong answer.
            names = dict.fromkeys([*(name for group in groups for name in self._requested[group]), *completed])
            graded = [(completed[name].reward if name in completed else None) or 0.0 for name in names]
            values |= prefixed(f"eval/{dataset}-", pass_rates(map(group_of, names), graded))
        for group in groups:
            self._forget(group)
        return values | {EVAL: self._rollout_step(event.version)}

    def _rollout_step(self, step: int) -> int:
        """Return the step's value on the axis of rollouts."""
        rollout, size = self._settings.rollout, self._settings.trainer.global_batch_size
        if not self._settings.metrics.wandb_always_use_train_step or not size:
            return step
        return step * rollout.rollout_batch_size * rollout.n_samples_per_prompt // size

    def _forget(self, group: str) -> None:
        self._completed.pop(group, None)
        self._running.forget(tuple(self._requested.pop(group, ())))

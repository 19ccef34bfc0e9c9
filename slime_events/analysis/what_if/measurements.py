"""`Measurements`: all that a prediction takes from a recorded run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from schemas.doc import doc
from schemas.errors import InvalidValue
from slime_events.analysis.what_if.answers import Answers, Pools, recorded_answers
from slime_events.analysis.what_if.chunks import ChunkTimes
from slime_events.analysis.what_if.delays import Delays, measure_delays
from slime_events.analysis.what_if.engine_fit import fit_engines
from slime_events.analysis.what_if.engine_speed import EngineSpeed
from slime_events.analysis.what_if.figures import measured_steps
from slime_events.analysis.what_if.grader_speed import GraderSpeed, gradings_of
from slime_events.analysis.what_if.timed_rollouts import NANO, timed_rollouts
from slime_events.analysis.what_if.trainer_speed import TrainerSpeed, fit_trainer, training_times
from slime_events.core.config.settings import TrainSettings
from slime_events.model import Run

FEWEST_STEPS = 6
"""Fewest committed steps of a run to predict from: the first one warms up, the others are measured."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """Timings and answers of a run, and the settings that are the same in every prediction."""

    settings: TrainSettings
    steps: Annotated[int, doc("committed steps of the run, which a prediction has too")]
    engines: EngineSpeed
    trainer: TrainerSpeed
    delays: Delays
    graders: GraderSpeed
    training: Annotated[Pools, doc("answered training groups by version")]
    evaluations: Annotated[dict[str, Pools], doc("answered evaluation groups by data set and version")]
    by_chunk: Annotated[
        tuple[EngineSpeed, ...], doc("the engines with the least and the most time of a chunk that the run allows")
    ] = ()

    def graders_of(self, processes: int) -> int:
        """Return the most gradings at once of this number of processes."""
        return self.graders.with_processes(processes)

    def with_engines(self, speed: EngineSpeed) -> Measurements:
        """Return the same with engines of another speed."""
        return replace(self, engines=speed)

    def answers(self, seed: int) -> Answers:
        """Return the answers for one simulated run."""
        return Answers(self.training, self.evaluations, seed)


def measure(run: Run, settings: TrainSettings, chunks: ChunkTimes) -> Measurements:
    """Measure a run with these chunks.

    Raises InvalidValue if it has too little, or was made in a way that is not simulated.
    """
    _check(settings)
    committed = sorted(step.step for step in run.steps.values() if step.committed is not None)
    if len(committed) < FEWEST_STEPS or len(measured_steps(run)) < FEWEST_STEPS - 1:
        raise InvalidValue(
            f"run {run.run} has {len(committed)} committed steps; {FEWEST_STEPS} without a restart in between are "
            "needed to know its timings"
        )
    rollouts = timed_rollouts(run)
    trained = training_times(run)
    pauses: dict[str, list[tuple[float, float]]] = {}
    for version in run.versions.values():
        for entry in version.activations:
            pause = (entry.at * NANO - entry.event.seconds, entry.at * NANO)
            pauses.setdefault(entry.event.engine, []).append(pause)
    training, evaluations = recorded_answers(run, committed[0], settings.rollout.n_samples_per_prompt)
    if not training:
        raise InvalidValue(
            f"run {run.run} has no group of {settings.rollout.n_samples_per_prompt} samples that have all ended and "
            "have rewards"
        )
    graders = GraderSpeed.of(gradings_of(run), settings.reward.rm_workers)
    fitted = fit_engines(rollouts, chunks, pauses, trained)
    return Measurements(
        settings=settings,
        steps=len(committed),
        engines=fitted.best,
        trainer=fit_trainer(
            run, [(rollout.begin, rollout.end) for rollout in rollouts], skips=settings.trainer.skip_zero_advantage
        ),
        delays=measure_delays(run, rollouts, settings, graders.gradings),
        graders=graders,
        training=training,
        evaluations=evaluations,
        by_chunk=(fitted.least, fitted.most),
    )


def _check(settings: TrainSettings) -> None:
    """Raise InvalidValue for a run whose course depends on more than engines, graders and a trainer."""
    rollout, data = settings.rollout, settings.data
    reasons = {
        "its rollout function (--rollout-function-path) decides which groups a step has": rollout.rollout_function_path,
        "agents make its rollouts (--agents), at times of their own": rollout.agents,
        "it suspends rollouts at step boundaries (--partial-rollout), which is not simulated": rollout.partial_rollout,
        "a client drives it (--tinker)": settings.run.tinker,
        "its prompts come from producers, at times of their own": data.waits_for_producers,
        "it reuses recorded rollouts (--archive-reuse rollouts)": data.reuses_rollouts,
        "it has shares of prompt sources (--source-share)": data.source_share,
        "it grades whole groups (--group-rm), which is not simulated": settings.reward.group_rm,
        "a user's function makes its evaluations (--eval-function-path)": settings.evaluation.own_function,
    }
    for reason, applies in reasons.items():
        if applies:
            raise InvalidValue(f"this run cannot be predicted: {reason}")

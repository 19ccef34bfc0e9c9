"""`retrain_steps`: train recorded steps again and compare each with the run's result.
`ranks_at`: bring ranks to a weight version of a run, from its nearest checkpoint or from its beginning.

    log -> `RecordedStep` n + 1 | ranks train n | the result of n - 1 is judged

The three stages run concurrently: the event loop reads and builds batches, the ranks train, a thread computes digests.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from msgspec import structs

from actors.learner.followed_batches import FollowedBatches
from actors.offline.retrained_versions import RetrainedVersions
from actors.trainer.checkpoints import CheckpointFolders, restore
from actors.trainer.ranks import Ranks, train
from schemas.batches import BatchSealed
from schemas.errors import StorageError, TrainerError, WeightsDamaged
from schemas.ids import group_of
from schemas.rollouts import RolloutCompleted
from schemas.runs import Branched
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from schemas.trust import is_doubted
from slime_events.analysis.retrain.recorded_steps import RecordedStep, recorded_step, recorded_steps
from slime_events.analysis.retrain.version_chain import Chain, read_chain
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.places import readable_weights
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.core.training.train_batch import StepResult
from slime_events.loop.learner.batches import DerivedBatch
from slime_events.loop.training.difference import (
    Difference,
    Distance,
    Retrained,
    distance,
    part_differences,
    training_differences,
)
from slime_events.loop.training.training_state import Digests, TrainingState
from storage.cancellation import end_all
from storage.folders.places import is_remote, local_path
from storage.log import Readable
from storage.weights.shards import TensorBytes
from storage.weights.store import WeightStore
from storage.weights.stored_version import digest_of, read

MakeRanks = Callable[[TrainSettings], AbstractAsyncContextManager[Ranks]]


async def run_steps(opened: OpenedRun, chain: Chain, steps: range) -> AsyncGenerator[RecordedStep, None]:
    """Yield the recorded steps of `steps`, which are committed, in order.

    Raises StorageError, RunNotFound if a learner's parent is gone.
    """
    if not steps:
        return
    temperature = opened.settings.rollout.rollout_temperature
    branched = chain.started.branched if chain.started else None
    if branched is None or not branched.follows:
        async for step in recorded_steps(opened.log, opened.fetch, steps, temperature=temperature):
            yield step
        return
    async with open_run(branched.where) as parent:
        batches = FollowedBatches(parent.fetch, temperature=temperature, shared=branched.version)
        async for step in followed_steps(opened.log, parent.log, batches, steps, branched):
            yield step


async def followed_steps(
    own: Readable, parent: Readable, batches: FollowedBatches, steps: range, branched: Branched
) -> AsyncGenerator[RecordedStep, None]:
    """Yield a learner's recorded steps in one pass over the parent's log, keeping only rollouts of later batches."""
    committed = {
        recorded.envelope.event.step: recorded.envelope.event
        async for recorded in own.read(1, of_type(own.run, "step.committed"))
        if isinstance(recorded.envelope.event, StepCommitted)
    }
    lacking: dict[int, set[str]] = {}
    seen: dict[int, set[str]] = {step: set() for step in steps}
    async for recorded in own.read(1, of_type(own.run, "batch.sealed")):
        sealed = recorded.envelope.event
        if isinstance(sealed, BatchSealed) and sealed.step in steps:
            batches.apply(sealed, recorded.position)
            lacking[sealed.step] = set(sealed.samples)
    step_of_group = {group_of(sample): step for step, samples in lacking.items() for sample in samples}
    left = list(steps)
    async for recorded in parent.read():
        event = recorded.envelope.event
        sample = getattr(event, "sample", "")
        step = step_of_group.get(group_of(sample))
        if step in seen:
            batches.read(event, recorded.position)
            seen[step].add(sample)
            if isinstance(event, RolloutCompleted):
                lacking[step].discard(sample)
        while left and not lacking[left[0]]:
            step = left.pop(0)
            yield await asyncio.to_thread(recorded_step, batches, committed[step], {})
            batches.forget(step)
            batches.take(DerivedBatch(unused=tuple(seen.pop(step))))
        if not left:
            return
    if left:
        raise StorageError(
            f"step {left[0]} of run {own.run} was trained on rollouts that are not in the log of {parent.run} at "
            f"{branched.where}"
        )


Judge = Callable[[RecordedStep, StepResult, list[TensorBytes]], tuple[tuple[Difference, ...], Distance | None]]
"""Returns the differences from the recorded step and, if digests differ or cannot be equal, the weights' distance."""


def same_digests(
    step: RecordedStep,
    result: StepResult,
    tensors: list[TensorBytes],
    *,
    keep: WeightStore | None = None,
    folder_of: Callable[[int], str | None] = lambda version: None,
) -> tuple[tuple[Difference, ...], Distance | None]:
    """Judge whether a step is equal bit for bit, and measure the weights' distance if it is not.

    keep: store for the weights of every step. folder_of: see `distance_from_recorded`.
    """
    committed = step.committed
    weights = keep.write(committed.version, tensors, committed.step).digest if keep else digest_of(tensors)
    trained = training_differences(committed, Digests(weights, result.optimizer_digest, result.critic_digest))
    if trained:  # equal bits need no reason
        trained = part_differences(committed, result.functions, result.models) + trained
    differences = step.differences + trained
    if weights == committed.weights_digest:
        return differences, None
    return differences, distance_from_recorded(folder_of, step, result, tensors)[1]


def distance_from_recorded(
    folder_of: Callable[[int], str | None], step: RecordedStep, result: StepResult, tensors: list[TensorBytes]
) -> tuple[tuple[Difference, ...], Distance | None]:
    """Measure the weights' distance from the recorded weights. On another topology sums differ, which is not an error.

    folder_of: returns the folder of a version's recorded weights; None if they are gone.
    """
    folder = folder_of(step.committed.version)
    return step.differences, None if folder is None else distance(read(folder)[1], tensors)


async def retrain_steps(
    ranks: Ranks,
    judge: Judge,
    steps: AsyncGenerator[RecordedStep, None],
    on_step: Callable[[Retrained], None] = lambda step: None,
    ends: Callable[[Retrained], object] = lambda step: step.differences,
    *,
    past: RetrainedVersions | None = None,
) -> Retrained | None:
    """Retrain the steps; return the step at which retraining ends early, by default the first that differs, or None.

    The ranks have then trained this step and possibly the next. on_step: called with every judged step, in order. past:
    as for `begin`. Raises errors of the ranks and of the log.
    """

    def judged(step: RecordedStep, result: StepResult, tensors: list[TensorBytes], seconds: float) -> Retrained:
        return _retrained(step.committed, seconds, *judge(step, result, tensors))

    async def report(judging: asyncio.Future[Retrained] | None) -> Retrained | None:
        if judging is None:
            return None
        on_step(step := await judging)
        return step if ends(step) else None

    building = asyncio.ensure_future(anext(steps, None))
    training: asyncio.Future[StepResult] | None = None
    judging: asyncio.Future[Retrained] | None = None
    try:
        while (step := await building) is not None:
            if step.batch is None:
                if wrong := await report(judging):
                    return wrong
                on_step(untrained := _retrained(step.committed, 0.0, step.differences))
                return untrained
            building = asyncio.ensure_future(anext(steps, None))
            begun = time.perf_counter()
            batch = past.weights.fill(step.batch) if past else step.batch
            training = asyncio.ensure_future(train(ranks, batch))
            wrong = await report(judging)
            result = await training
            if wrong:
                return wrong
            # Copy, because the tensors of a rank in this process change with its next step.
            tensors = [(name, dtype, shape, bytes(data)) for name, dtype, shape, data in await ranks.export_weights()]
            if past:
                await asyncio.to_thread(past.keep, step.committed.version, tensors)
            seconds = time.perf_counter() - begun
            judging = asyncio.ensure_future(asyncio.to_thread(judged, step, result, tensors, seconds))
        return await report(judging)
    finally:
        await end_all(*(task for task in (building, training, judging) if task is not None))
        await steps.aclose()


def _retrained(
    committed: StepCommitted, seconds: float, differences: tuple[Difference, ...], apart: Distance | None = None
) -> Retrained:
    return Retrained(committed.step, committed.version, committed.tokens, seconds, differences, apart)


def weights_folder(opened: OpenedRun, chain: Chain, version: int) -> str | None:
    """Return the path or URL of a version's weights, if the run's files still exist."""
    published = chain.trained.published.get(version)
    if published is not None and not is_remote(published.url) and local_path(published.url).is_dir():
        return published.url
    place = readable_weights(opened.settings.run, opened.folder)
    if place is None:
        return None
    digest = published.digest if published is not None else chain.trained.committed[version].weights
    try:
        return WeightStore(place).folder(version, digest)
    except WeightsDamaged:
        return None


async def ranks_at(
    opened: OpenedRun,
    version: int,
    ranks: Ranks,
    *,
    from_base: bool = False,
    on_step: Callable[[Retrained], None] = lambda step: None,
) -> Digests:
    """Bring ranks, newly built from `opened.settings`, to a version of the run; return its digests.

    The ranks start from the nearest usable checkpoint at or before the version, or from the run's beginning, and
    retrain the later steps from the log. Raises RunNotFound for a version that does not exist, TrainerError at the
    first step that differs from the committed step, StorageError if the log does not hold what was sealed.
    """
    chain = await read_chain(opened.log)
    chain.check(version)
    async with past_versions(opened, chain) as past:
        begun = await begin(opened, chain, ranks, newest=version, from_base=from_base, past=past)
        wrong = await retrain_steps(
            ranks, same_digests, run_steps(opened, chain, range(begun, version)), on_step, past=past
        )
    if wrong:
        raise TrainerError(
            f"step {wrong.step} of run {opened.run} differs from what was committed: "
            f"{', '.join(map(str, wrong.differences))}: see `slime-events retrain {opened.where}`. Choose a version "
            "with a checkpoint or, if the optimizer may start anew, branch with --reset-optimizer"
        )
    if version > begun:
        return chain.trained.committed[version]
    weights = await ranks.weights_digest()
    return Digests(weights, await ranks.optimizer_digest(), await ranks.critic_digest())


def past_versions(opened: OpenedRun, chain: Chain) -> AbstractAsyncContextManager[RetrainedVersions]:
    """Open the earlier weights for `begin` and the steps after it."""
    return RetrainedVersions.of(opened.settings, chain, partial(weights_folder, opened, chain))


async def begin(
    opened: OpenedRun,
    chain: Chain,
    ranks: Ranks,
    *,
    newest: int,
    past: RetrainedVersions,
    from_base: bool = False,
    exact: bool = True,
) -> int:
    """Bring ranks to the nearest checkpoint at or before `newest`, or to the run's beginning; return its version.

    exact: the ranks have the run's topology, so that the optimizer's digest is comparable. Raises TrainerError if the
    base checkpoint has different weights than the run began with.
    """
    trained = chain.trained if exact else _by_weights(chain.trained)
    trained = replace(trained, saved={}) if from_base else trained
    folders = _folders(opened, trained)
    version = await restore(ranks, trained, folders, newest=newest, lacks=past.weights.lacking)
    first = chain.trained.published.get(version)
    if version == 0 and first is not None and (weights := await ranks.weights_digest()) != first.digest:
        raise TrainerError(
            f"the run began with weights {first.digest}, but the base checkpoint has {weights}: give the original base "
            "checkpoint (--hf-checkpoint FOLDER)"
        )
    if past.weights.is_needed:
        await asyncio.to_thread(past.keep, version, await ranks.export_weights())
    return version


def _by_weights(trained: TrainingState) -> TrainingState:
    """Return the state with only the weights' digests: on another topology the optimizer's digest differs."""
    committed = {version: Digests(digests.weights, "") for version, digests in trained.committed.items()}
    saved = {
        version: structs.replace(checkpoint, optimizer_digest="", critic_digest="")
        for version, checkpoint in trained.saved.items()
        if trained.matches(checkpoint)
    }
    return replace(trained, committed=committed, saved=saved)


def _folders(opened: OpenedRun, trained: TrainingState) -> CheckpointFolders:
    """Return the checkpoint folders: from the settings, in the run's folder, or next to the last recorded one."""
    if opened.settings.trainer.save and not is_doubted(opened.settings.trainer.save):
        return CheckpointFolders(opened.settings.trainer.save)
    if opened.folder is not None:
        return CheckpointFolders(str(opened.folder.checkpoints))
    newest = trained.saved.get(max(trained.saved, default=-1))
    return CheckpointFolders(str(Path(newest.url).parent) if newest else f"{opened.where}/checkpoints")

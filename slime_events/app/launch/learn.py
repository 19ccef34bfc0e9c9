"""`Learn`: a learner's run, from the parent's log to its own end, without engine, conductor and Ray.

    lock on the folder -> NATS server for its own log -> run.started | run.resumed
                       -> trainer ranks at the version that both runs have -> Learner, archivist -> run.finished

All of its state is in the two logs and the folder: after a kill the same command continues.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import structs

from actors.archivist import SealPolicy, archive_run
from actors.learner.followed_batches import FollowedBatches
from actors.learner.learner import Learner, parent_records
from actors.offline.retrainer import MakeRanks
from actors.trainer.local_ranks import local_ranks
from actors.trainer.trainer import Trainer
from actors.trainer.trainer_plan import TrainerPlan
from actors.trainer.version_files import memory_of
from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.errors import DeadlineExceeded, InvalidValue, RunNotFound, SlimeEventsError
from schemas.runs import Branched
from schemas.subjects import of_type
from schemas.trust import name_words
from slime_events.analysis.retrain.settings import with_base
from slime_events.app.launch.branch_checkpoint import put_branch_checkpoint
from slime_events.app.launch.branch_settings import branch_settings, check_branch
from slime_events.app.launch.log_server import LogServer
from slime_events.app.launch.metrics_process import metrics_written
from slime_events.app.launch.run_announcement import FAIL_DEADLINE_S, announce_failure, announce_resume, announce_start
from slime_events.app.launch.run_lock import holding
from slime_events.app.launch.run_record import read_run_record
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.config.reach import check_reach, reaching_texts
from slime_events.core.config.settings import RunSettings, TrainSettings
from slime_events.core.run.local_models import LocalModels
from slime_events.core.run.participant import Participant
from slime_events.core.run.places import cache_variables, weights_place
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder
from slime_events.core.run.run_reader import OpenedRun, branched_of
from slime_events.core.run.run_settings import nats_place
from slime_events.core.telemetry.process_log import setup_logging
from slime_events.loop.learner.batches import Preview, preview
from slime_events.loop.learner.overrides import Overrides, read_overrides, write_overrides
from slime_events.loop.learner.settings import learner_settings, make_batches, makes_other_weights
from slime_events.model.branch_point import read_point
from storage.archive.writer import ArchiveWriter, blobs_to_archive
from storage.blobs import BlobStore
from storage.cancellation import check_cancelled, end_all
from storage.file_access import limited_files
from storage.log import Recorded
from storage.open_log import recorded_place
from storage.weights.store import WeightStore

ROLE = "learner"
"""Role of a learner, which is a single process."""
ARCHIVE_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class NewLearner:
    """Settings of a new learner, and its branch point."""

    settings: TrainSettings
    branched: Branched


class Learn:
    """One incarnation of a learner.

    parent: the run that it follows; may be closed, as its log is opened again to read. new: None to resume. see: called
    with every event of the learner's log. note: takes messages for the user. make_ranks: starts the trainer's ranks.
    """

    def __init__(
        self,
        parent: OpenedRun,
        folder: RunFolder,
        new: NewLearner | None,
        *,
        see: Callable[[Recorded], None],
        note: Callable[[str], None],
        make_ranks: MakeRanks | None = None,
    ) -> None:
        self._parent, self._folder, self._new = parent, folder, new
        self.see, self._note, self._make_ranks = see, note, make_ranks or local_ranks

    async def run(self) -> int:
        """Train to the end, and return the weight version reached. Raises a SlimeEventsError with the reason."""
        folder, run = self._folder, self._new.settings.run if self._new else None
        with limited_files(run.file_access if run else folder.file_access()), holding(folder) as before:
            setup_logging(ROLE, folder.logs)
            place = nats_place(run) if run else recorded_place(folder.path)
            name, replicas = (run.run, run.nats_replicas) if run else (folder.log_name(), 1)
            server = LogServer(folder, name, place, self._note)
            async with server.log(before, create=run is not None, replicas=replicas) as (_, log):
                if (own := self._new) is not None:
                    incarnation = await announce_start(Participant(log, ROLE), own.settings, folder, own.branched)
                else:
                    record = await read_run_record(log)
                    branched, parent = record.started.branched, self._parent.run
                    if branched is None or not branched.follows or branched.run != parent:
                        raise InvalidValue(
                            f"run {log.run} exists and does not learn from {parent}: choose another name"
                        )
                    own = NewLearner(record.settings, branched)
                    if record.has_finished:
                        self._note(f"run {log.run} has finished all its steps: nothing to do")
                        return record.steps
                    incarnation = await announce_resume(Participant(log, ROLE), record, own.settings, folder)
                check_cancelled()
                worker = Participant(log, ROLE, incarnation=incarnation)
                async with (
                    metrics_written(own.settings.metrics, folder, self._note),
                    self._archiving(worker, own.settings.run) as archiving,
                ):
                    try:
                        return await _while_archived(archiving, self._learn(worker, own))
                    except SlimeEventsError as error:
                        await announce_failure(worker, ROLE, str(error))
                        raise

    async def _learn(self, worker: Participant, own: NewLearner) -> int:
        settings, branched = (await asyncio.to_thread(LocalModels.of, own.settings)).settings, own.branched
        trainer, checkpoints = settings.trainer, settings.trainer.save or str(self._folder.checkpoints)
        temperature = settings.rollout.rollout_temperature
        rollouts = FollowedBatches(self._parent.fetch, temperature=temperature, shared=branched.version)
        changes = Overrides()
        os.environ.update(cache_variables(settings.run))
        if branched.changes is not None:
            blobs = BlobStore(settings.run.blob_url or str(self._folder.blobs))
            changes = read_overrides(blobs.get(branched.changes), f"the changes of run {settings.run.run}")
        await put_branch_checkpoint(branched, settings, checkpoints, note=self._note, make_ranks=self._make_ranks)
        place = weights_place(settings.run, self._folder)
        memory = memory_of(worker.log.run, place, trainer, on_one_host=True)
        async with self._make_ranks(settings) as ranks:
            shell = Trainer(
                worker,
                ranks,
                WeightStore(place, base=trainer.hf_checkpoint, deltas=trainer.delta_rule),
                rollouts,
                replace(TrainerPlan.of(settings, checkpoints), memory=memory),
            )
            return await Learner(
                worker,
                parent_records(self._parent.where, deadline_s=settings.rollout.rollout_deadline),
                make_batches(self._parent, settings, branched, changes),
                rollouts,
                shell,
                self.see,
            ).run()

    @contextlib.asynccontextmanager
    async def _archiving(self, worker: Participant, run: RunSettings) -> AsyncIterator[asyncio.Task[Any]]:
        """Run the archivist while inside. It gets a minute after the learner's end, or some seconds after a failure."""
        path = self._folder.path
        url, stop = run.archive_url or str(self._folder.archive), asyncio.Event()
        blobs = blobs_to_archive(run.blob_url or str(self._folder.blobs), url, path)
        writer = ArchiveWriter(url, worker.log.run, blobs=blobs)
        policy = SealPolicy(max_age_s=run.archive_seconds)
        archiving = asyncio.create_task(archive_run(worker.log, writer, worker.id, stop=stop, policy=policy))
        try:
            yield archiving
            await asyncio.wait({archiving}, timeout=ARCHIVE_DEADLINE_S)
            if not archiving.done():
                raise DeadlineExceeded(
                    f"run {worker.log.run} has finished, but its archive at {url} is not complete after "
                    f"{ARCHIVE_DEADLINE_S:.0f} s: complete it with `slime-events archive {worker.log.run}`"
                )
            archiving.result()
        finally:
            stop.set()
            await asyncio.wait({archiving}, timeout=FAIL_DEADLINE_S)
            await end_all(archiving)


async def _while_archived(archiving: asyncio.Task[Any], learn: Coroutine[object, object, int]) -> int:
    """Return the result of `learn`. If the archivist fails meanwhile, cancel `learn` and raise that error."""
    learning = asyncio.create_task(learn, name="learn")
    try:
        await asyncio.wait({learning, archiving}, return_when=asyncio.FIRST_COMPLETED)
        if not learning.done():
            archiving.result()
        return await learning
    finally:
        await end_all(learning)


@dataclass(frozen=True, slots=True)
class LearnerRequest:
    """A learner that the user asks for."""

    name: str
    version: Annotated[int | None, doc("Weight version to begin with; None for the newest before the first change")] = (
        None
    )
    follow: Annotated[bool, doc("Continue until the parent ends, not only to the end of its log")] = False
    drop: Annotated[str | None, doc("SQL that selects samples or groups to leave out")] = None
    changes: Annotated[str | None, doc("Path of a changes file")] = None
    runs_dir: Annotated[str | None, doc("Folder of runs; None for the parent's")] = None
    flags: Annotated[tuple[str, ...], doc("Flags that change the parent's settings")] = ()


@dataclass(frozen=True, slots=True)
class LearnerPlan:
    """The work of a learner, before it starts."""

    parsed: Annotated[ParsedTrain, doc("Settings, and notes on them")]
    changes: Overrides
    preview: Annotated[Preview, doc("Differences from the parent's batches")]
    version: Annotated[int | None, doc("Weight version to begin with; None if nothing differs from the parent")]


async def plan_learner(parent: OpenedRun, request: LearnerRequest) -> LearnerPlan:
    """Plan in one pass over the parent's log with the changes. Raises ConfigError, BadQuery, RunNotFound."""
    before = await branched_of(parent.log)
    if before is not None and before.follows:
        raise InvalidValue(
            f"run {parent.run} is a learner without rollouts of its own: learn from its parent, {before.where}"
        )
    parsed = branch_settings(parent.settings, str(runs_dir(parent, request)), (*request.flags, "--run", request.name))
    check_reach(parsed.settings)
    name_words(reaching_texts(parsed.settings))  # the user has accepted every address in the settings
    models = await asyncio.to_thread(LocalModels.of, parsed.settings)
    weights = parent.folder.weights if parent.folder else None
    moved = parsed.settings.trainer.hf_checkpoint != parent.settings.trainer.hf_checkpoint
    based = models.settings if moved else with_base(models.settings, weights)
    steps = await _steps(parent, based.rollout.num_rollout or 0, follow=request.follow)
    own = learner_settings(parent.settings, based, steps=steps)
    changes = await _changes(parent, request)
    first = before.version if before else 0
    point = await read_point(parent.log, first, parent.where)
    previewed = await preview(parent.log.read(), make_batches(parent, own, point, changes))
    version = request.version
    if version is None:
        version = first if makes_other_weights(parent.settings, own) else previewed.first
    elif previewed.first is not None and previewed.first < version:
        raise InvalidValue(
            f"--from {version} is too late: the batch of step {previewed.first} changes, and version {version} was "
            f"trained on the recorded batch. Begin with version {previewed.first} or an earlier one"
        )
    if version is not None:
        check_branch(parent.settings, own, version, fresh_optimizer=False)
    return LearnerPlan(ParsedTrain(models.recorded(own), parsed.notes), changes, previewed, version)


async def new_learner(parent: OpenedRun, plan: LearnerPlan, folder: RunFolder) -> NewLearner:
    """Return the new learner's settings and branch point, and store its changes in its blob store."""
    assert plan.version is not None, "there is nothing to train"
    settings = plan.parsed.settings
    blobs = BlobStore(settings.run.blob_url or str(folder.blobs))
    kept = await asyncio.to_thread(blobs.put, write_overrides(plan.changes)) if plan.changes else None
    point = await read_point(parent.log, plan.version, parent.where)
    branched = structs.replace(point, cursors={}, passed={}, follows=True, changes=kept)
    return NewLearner(settings, branched)


def runs_dir(parent: OpenedRun, request: LearnerRequest) -> Path:
    """Return the folder of runs for the learner, by default the parent's."""
    return Path(request.runs_dir or (parent.folder.path.parent if parent.folder else RUNS_DIR))


async def _steps(parent: OpenedRun, most: int, *, follow: bool) -> int:
    if follow:
        return most
    last = await parent.log.last(of_type(parent.run, "batch.sealed"))
    if last is None or not isinstance(last.envelope.event, BatchSealed):
        raise RunNotFound(f"run {parent.run} has no batch yet: wait for its first batch, or use --follow")
    return min(most, last.envelope.event.step + 1)


async def _changes(parent: OpenedRun, request: LearnerRequest) -> Overrides:
    """Read the changes file, and add the samples that the query drops.

    Raises InvalidValue for samples and groups that the run does not have, BadQuery.
    """
    changes = Overrides()
    if request.changes is not None:
        try:
            changes = read_overrides(Path(request.changes).read_bytes(), request.changes)
        except OSError as error:
            raise InvalidValue(f"--changes {request.changes} cannot be read: {error}") from error
        await _check_known(parent, changes)
    if request.drop is not None:
        from slime_events.analysis.query import samples_where

        samples = await samples_where(parent, request.drop)
        if not samples:
            raise InvalidValue(f"--drop selects no sample: test the query with `slime-events query {parent.where}`")
        changes = structs.replace(changes, dropped=changes.dropped | frozenset(samples))
    return changes


async def _check_known(parent: OpenedRun, changes: Overrides) -> None:
    samples = set(changes.dropped) | changes.rewards.keys()
    groups = set(changes.dropped_groups) | changes.verdicts.keys()
    async for recorded in parent.log.read(1, of_type(parent.run, "rollout.completed")):
        samples.discard(recorded.envelope.event.entity())
    async for recorded in parent.log.read(1, of_type(parent.run, "prompt.submitted")):
        groups.discard(recorded.envelope.event.entity())
    if unknown := sorted(samples | groups):
        more = f" and lacks {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise InvalidValue(
            f"run {parent.run} has no {unknown[0]}{more}: the changes belong to another run, or to a part of this run "
            "that is not in its log yet"
        )

"""`learn`: a learner's run, from the parent's log to its own end. No engine, no conductor, no Ray.

    lock on the folder -> NATS server for its own log -> run.started | run.resumed
                       -> trainer ranks at the version that both runs have -> Learner, archivist -> run.finished

All of its state is in the two logs and the folder: after a kill the same command goes on.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from actors.archivist import SealPolicy, archive_run
from actors.learner.followed_batches import FollowedBatches
from actors.learner.learner import Learner, parent_records
from actors.offline.retrainer import MakeRanks
from actors.trainer.local_ranks import local_ranks
from actors.trainer.trainer import Trainer
from actors.trainer.trainer_plan import TrainerPlan
from schemas.batches import BatchSealed
from schemas.errors import DeadlineExceeded, InvalidValue, RunNotFound, SlimeEventsError
from schemas.runs import Branched
from schemas.subjects import of_type
from schemas.trust import name_words
from slime_events.analysis.model.branch_point import read_point
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
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder
from slime_events.core.run.run_reader import OpenedRun, branched_of
from slime_events.core.run.run_settings import nats_place
from slime_events.core.telemetry.process_log import setup_logging
from slime_events.loop.learner.batches import Preview, preview
from slime_events.loop.learner.overrides import Overrides, read_overrides, write_overrides
from slime_events.loop.learner.settings import learner_settings, make_batches, makes_other_weights
from storage.archive.writer import ArchiveWriter, blobs_to_archive
from storage.blobs import BlobStore
from storage.cancellation import check_cancelled, end_all
from storage.file_access import limited_files
from storage.log import Recorded
from storage.open_log import recorded_place
from storage.weights.store import WeightStore

ROLE = "learner"
"""Of the one process that a learner is."""
ARCHIVE_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class NewLearner:
    """Settings of a learner, and where it branches off."""

    settings: TrainSettings
    branched: Branched


class Learn:
    """One incarnation of a learner. parent: may be closed, its log is opened where it is read. new: None to resume.

    see: is called with every event of the learner's log. note: takes messages for the user. make_ranks: of the trainer.
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
        """Train to the end; the version reached. Raises a SlimeEventsError with the reason."""
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
                            f"there is a run {log.run}, and it does not learn from {parent}: choose another name"
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
        settings, branched = own.settings, own.branched
        trainer, checkpoints = settings.trainer, settings.trainer.save or str(self._folder.checkpoints)
        temperature = settings.rollout.rollout_temperature
        rollouts = FollowedBatches(self._parent.fetch, temperature=temperature, shared=branched.version)
        changes = Overrides()
        if branched.changes is not None:
            blobs = BlobStore(settings.run.blob_url or str(self._folder.blobs))
            changes = read_overrides(blobs.get(branched.changes), f"the changes of run {settings.run.run}")
        await put_branch_checkpoint(branched, settings, checkpoints, note=self._note, make_ranks=self._make_ranks)
        async with self._make_ranks(settings) as ranks:
            shell = Trainer(
                worker,
                ranks,
                WeightStore(str(self._folder.weights), base=trainer.hf_checkpoint),
                rollouts,
                TrainerPlan.of(settings, checkpoints),
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
        """Run the archivist. It has a minute after the learner's end, and some seconds after its failure."""
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
                    f"run {worker.log.run} has finished, but its archive at {url} is not closed after "
                    f"{ARCHIVE_DEADLINE_S:.0f} s: `slime-events archive {worker.log.run}` does the rest"
                )
            archiving.result()
        finally:
            stop.set()
            await asyncio.wait({archiving}, timeout=FAIL_DEADLINE_S)
            await end_all(archiving)


async def _while_archived(archiving: asyncio.Task[Any], learn: Coroutine[Any, Any, int]) -> int:
    """The result of `learn`. An archivist that fails meanwhile ends it with its own error."""
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
    """What the user asks for. version: to begin with; None: the newest before which nothing changes.

    follow: to the parent's end, not only to the end of its log. drop: SQL that selects samples or groups. changes: path
    of a changes file. runs_dir: None: the parent's. flags: over the parent's settings.
    """

    name: str
    version: int | None = None
    follow: bool = False
    drop: str | None = None
    changes: str | None = None
    runs_dir: str | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LearnerPlan:
    """What a learner would do. parsed: settings and notes on them. changes, preview: what differs from the parent.

    version: None where nothing differs, so that there is nothing to train.
    """

    parsed: ParsedTrain
    changes: Overrides
    preview: Preview
    version: int | None


async def plan_learner(parent: OpenedRun, request: LearnerRequest) -> LearnerPlan:
    """One pass over the parent's log with the requested changes. Raises ConfigError, BadQuery, RunNotFound."""
    before = await branched_of(parent.log)
    if before is not None and before.follows:
        raise InvalidValue(
            f"run {parent.run} makes no rollouts, it learns from those of {before.run}: learn from {before.where}"
        )
    parsed = branch_settings(parent.settings, str(runs_dir(parent, request)), (*request.flags, "--run", request.name))
    check_reach(parsed.settings)
    name_words(reaching_texts(parsed.settings))  # they are the user's own now
    weights = parent.folder.weights if parent.folder else None
    moved = parsed.settings.trainer.hf_checkpoint != parent.settings.trainer.hf_checkpoint
    wanted = parsed.settings if moved else with_base(parsed.settings, weights)
    steps = await _steps(parent, wanted.rollout.num_rollout or 0, follow=request.follow)
    own = learner_settings(parent.settings, wanted, steps=steps)
    changes = await _changes(parent, request)
    first = before.version if before else 0
    point = await read_point(parent.log, first, parent.where)
    previewed = await preview(parent.log.read(), make_batches(parent, own, point, changes))
    version = request.version
    if version is None:
        version = first if makes_other_weights(parent.settings, own) else previewed.first
    elif previewed.first is not None and previewed.first < version:
        raise InvalidValue(
            f"--from {version}: the batch of step {previewed.first} changes, and version {version} was trained on the "
            f"recorded one: begin with version {previewed.first} or before"
        )
    if version is not None:
        check_branch(parent.settings, own, version, fresh_optimizer=False)
    return LearnerPlan(ParsedTrain(own, parsed.notes), changes, previewed, version)


async def new_learner(parent: OpenedRun, plan: LearnerPlan, folder: RunFolder) -> NewLearner:
    """The new learner's settings and branch point; stores its changes in its blob store."""
    assert plan.version is not None, "nothing would be trained"
    settings = plan.parsed.settings
    blobs = BlobStore(settings.run.blob_url or str(folder.blobs))
    kept = await asyncio.to_thread(blobs.put, write_overrides(plan.changes)) if plan.changes else None
    point = await read_point(parent.log, plan.version, parent.where)
    branched = structs.replace(point, cursors={}, passed={}, follows=True, changes=kept)
    return NewLearner(settings, branched)


def runs_dir(parent: OpenedRun, request: LearnerRequest) -> Path:
    """The folder of the learner's run: by default beside its parent's."""
    return Path(request.runs_dir or (parent.folder.path.parent if parent.folder else RUNS_DIR))


async def _steps(parent: OpenedRun, most: int, *, follow: bool) -> int:
    if follow:
        return most
    last = await parent.log.last(of_type(parent.run, "batch.sealed"))
    if last is None or not isinstance(last.envelope.event, BatchSealed):
        raise RunNotFound(f"run {parent.run} has no batch yet: wait for its first, or follow it with --follow")
    return min(most, last.envelope.event.step + 1)


async def _changes(parent: OpenedRun, request: LearnerRequest) -> Overrides:
    """Those of the file, and what the query drops. Raises InvalidValue for what the run has not made, BadQuery."""
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
            raise InvalidValue(f"--drop gives no sample: look at it with `slime-events query {parent.where}`")
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
        more = f" and {len(unknown) - 1} more that are named" if len(unknown) > 1 else ""
        raise InvalidValue(
            f"run {parent.run} has no {unknown[0]}{more}: the changes are of another run, or of a part of it that is "
            "not there yet"
        )

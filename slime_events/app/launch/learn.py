"""`learn`: a learner's run, from the parent's log to its own end. No engine, no conductor, no Ray.

    lock on the folder -> NATS server for its own log -> run.started | run.resumed
                       -> trainer ranks at the version that both runs have -> Learner, archivist -> run.finished

It holds nothing that the two logs and the folder do not hold: the same command goes on where it was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from actors.archivist import SealPolicy, archive_run
from actors.learner.followed_batches import FollowedBatches
from actors.learner.learner import Learner
from actors.learner.parent_log import parent_records
from actors.offline.ranks_at import MakeRanks
from actors.trainer.local_ranks import local_ranks
from actors.trainer.trainer import Trainer
from schemas.errors import Conflict, DeadlineExceeded, InvalidValue, SlimeEventsError, StorageError
from schemas.runs import Branched, RunFailed, RunFinished
from schemas.subjects import about
from slime_events.app.launch.branch_checkpoint import put_beginning
from slime_events.app.launch.log_server import LogServer
from slime_events.app.launch.run_announcement import announce_resume, announce_start
from slime_events.app.launch.run_lock import holding
from slime_events.app.launch.run_record import Standing, read_standing
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.telemetry.process_log import setup_logging
from slime_events.loop.learner.batches import Batches
from slime_events.loop.learner.overrides import Overrides, read_overrides
from slime_events.loop.learner.settings import learner_normalise, least_rollouts, own_filter
from storage.archive.writer import ArchiveWriter, blobs_to_archive
from storage.blobs import BlobStore
from storage.cancellation import check_cancelled, end_all
from storage.jetstream.log import JetStreamLog
from storage.log import EventLog, Fence, Recorded
from storage.weights.retention import Retention
from storage.weights.store import WeightStore

ROLE = "learner"
"""Of the one process that a learner is."""
ARCHIVE_DEADLINE_S = 60.0
FAIL_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class Beginning:
    """Of a new learner: its settings and where it branches off."""

    settings: TrainSettings
    branched: Branched


@dataclass(frozen=True, slots=True)
class _Own:
    """What a learner's log says of it. life: the incarnation that begins now."""

    settings: TrainSettings
    branched: Branched
    life: Incarnation


class Learn:
    """One life of a learner. parent: may be closed again, its log is opened where it is read. beginning: None where the
    learner goes on. see: is shown every event of its log. note: says what happens. make_ranks: the trainer's.
    """

    def __init__(
        self,
        parent: OpenedRun,
        folder: RunFolder,
        beginning: Beginning | None,
        *,
        see: Callable[[Recorded], None],
        note: Callable[[str], None],
        make_ranks: MakeRanks | None = None,
    ) -> None:
        self._parent, self._folder, self._beginning = parent, folder, beginning
        self.see, self._note, self._make_ranks = see, note, make_ranks or local_ranks

    async def run(self) -> int:
        """Train to the end of what is to be trained; the version reached. Raises a SlimeEventsError with the reason."""
        new = self._beginning
        with holding(self._folder) as before:
            setup_logging(ROLE, self._folder.logs)
            server = LogServer(self._folder, new.settings.run.nats_url if new else self._url(), self._note)
            async with server.running(before) as url, self._open(url) as log:
                if new is not None:
                    own = await self._start(log, new)
                else:
                    standing = await self._look(log)
                    if standing.has_finished:
                        self._note(f"run {log.run} has finished all its steps: nothing to do")
                        return standing.steps
                    own = await self._resume(log, standing)
                check_cancelled()
                worker = Participant(log, ROLE, incarnation=own.life)
                async with self._archiving(worker, own) as archiving:
                    try:
                        return await _while_archived(archiving, self._learn(worker, own))
                    except SlimeEventsError as error:
                        await _fail(worker, error)
                        raise

    def _url(self) -> str | None:
        noted = self._folder.path / "nats-url"
        return noted.read_text().strip() if noted.is_file() else None

    @contextlib.asynccontextmanager
    async def _open(self, url: str) -> AsyncIterator[JetStreamLog]:
        new = self._beginning
        name = new.settings.run.run if new else self._folder.log_name()
        replicas = new.settings.run.nats_replicas if new else 1
        log = await JetStreamLog.open(url, name, create=new is not None, replicas=replicas, on_wait=self._note)
        try:
            yield log
        finally:
            await log.close()

    async def _start(self, log: EventLog, new: Beginning) -> _Own:
        life = await announce_start(Participant(log, ROLE), new.settings, self._folder, new.branched)
        return _Own(new.settings, new.branched, life)

    async def _look(self, log: EventLog) -> Standing:
        """Where a learner stands. Raises InvalidValue for a run that is none, or one of another run."""
        standing = await read_standing(log)
        branched = standing.started.branched
        if branched is None or not branched.follows or branched.run != self._parent.run:
            raise InvalidValue(
                f"there is a run {log.run}, and it does not learn from {self._parent.run}: choose another name"
            )
        return standing

    async def _resume(self, log: EventLog, standing: Standing) -> _Own:
        life = await announce_resume(Participant(log, ROLE), standing, standing.settings, self._folder)
        assert standing.started.branched is not None
        return _Own(standing.settings, standing.started.branched, life)

    async def _learn(self, worker: Participant, own: _Own) -> int:
        settings, branched = own.settings, own.branched
        trainer, checkpoints = settings.trainer, settings.trainer.save or str(self._folder.checkpoints)
        temperature = settings.rollout.rollout_temperature
        rollouts = FollowedBatches(self._parent.fetch, temperature=temperature, shared=branched.version)
        await put_beginning(branched, settings, checkpoints, note=self._note, make_ranks=self._make_ranks)
        async with self._make_ranks(settings) as ranks:
            shell = Trainer(
                worker,
                ranks,
                WeightStore(str(self._folder.weights), base=trainer.hf_checkpoint),
                self._parent.fetch,
                temperature=temperature,
                publish_every=trainer.update_weights_interval,
                checkpoint_every=trainer.save_interval,
                checkpoints=checkpoints,
                steps=settings.rollout.num_rollout or 0,
                retention=Retention(trainer.keep_weights, trainer.save_interval or 0) if trainer.keep_weights else None,
                open_batches=rollouts,
            )
            return await Learner(
                worker,
                parent_records(self._parent.where, deadline_s=settings.rollout.rollout_deadline),
                make_batches(self._parent, settings, branched, self._changes(own)),
                rollouts,
                shell,
                steps=settings.rollout.num_rollout or 0,
                checkpoint_every=trainer.save_interval,
                see=self.see,
            ).run()

    def _changes(self, own: _Own) -> Overrides:
        if own.branched.changes is None:
            return Overrides()
        blobs = BlobStore(own.settings.run.blob_url or str(self._folder.blobs))
        return read_overrides(blobs.get(own.branched.changes), f"the changes of run {own.settings.run.run}")

    @contextlib.asynccontextmanager
    async def _archiving(self, worker: Participant, own: _Own) -> AsyncIterator[asyncio.Task[Any]]:
        """The archivist, which is given a minute after a learner's end, and some seconds after its failure."""
        run, path = own.settings.run, self._folder.path
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


def make_batches(parent: OpenedRun, own: TrainSettings, branched: Branched, changes: Overrides) -> Batches:
    """The decisions of a learner with these settings."""
    return Batches(
        parent.run,
        learner_normalise(own),
        overrides=changes,
        group_filter=own_filter(parent.settings, own),
        first=branched.version,
        least=least_rollouts(own),
    )


async def _while_archived(archiving: asyncio.Task[Any], learn: Coroutine[Any, Any, int]) -> int:
    """What `learn` comes to. An archivist that fails meanwhile ends it with its own error."""
    learning = asyncio.create_task(learn, name="learn")
    try:
        await asyncio.wait({learning, archiving}, return_when=asyncio.FIRST_COMPLETED)
        if not learning.done():
            archiving.result()
        return await learning
    finally:
        await end_all(learning)


async def _fail(worker: Participant, error: SlimeEventsError) -> None:
    """Say in the learner's log why it ended, if the log still answers and does not say that it has finished."""
    log = worker.log
    with contextlib.suppress(StorageError, TimeoutError):
        async with asyncio.timeout(FAIL_DEADLINE_S):
            last, at = await log.last(about(log.run, "run", "run")), await log.position()
            if last is not None and isinstance(last.envelope.event, RunFinished):
                return
            failed = RunFailed(role=ROLE, reason=str(error), at_events=at)
            with contextlib.suppress(Conflict):
                await worker.append_fenced(failed, Fence(about(log.run, "run", "run"), last.position if last else 0))

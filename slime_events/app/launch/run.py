"""`launch`: one training run from an empty folder, or from where it stopped, to its summary.

    lock on the folder -> NATS server ─┐
                          Ray ─────────┴─> run.started | run.resumed
                     -> conductor, grader, archivist, trainer (Ray actors), engines (Ray Serve)
                     -> follow the log until run.finished | run.failed -> summary.json

The launcher holds no state: it starts processes, watches the log and their ends, and reports. A resumed run goes on
from its log alone.
"""

import asyncio
import contextlib
import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actors.megatron.architecture import Architecture
from schemas.errors import ConfigError, SlimeEventsError
from schemas.ids import INBOX
from schemas.prompts import PromptSubmitted
from schemas.runs import Branched
from schemas.subjects import of_type
from slime_events.analysis.model.progress import Progress
from slime_events.app.launch.abandonable import ended_within
from slime_events.app.launch.branch_checkpoint import put_branch_checkpoint
from slime_events.app.launch.cluster import Cluster
from slime_events.app.launch.launcher_presence import check_absent, present
from slime_events.app.launch.log_server import LogServer
from slime_events.app.launch.roles import CONDUCTOR, Roles, error_of
from slime_events.app.launch.run_announcement import announce_resume, announce_start
from slime_events.app.launch.run_lock import holding
from slime_events.app.launch.run_record import RunRecord
from slime_events.app.launch.supervisor import LAUNCHER, Supervisor
from slime_events.app.launch.view import View
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation, RunAddress
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.state.run import RunPhase
from storage.archive.reader import ArchiveReader
from storage.cancellation import check_cancelled
from storage.jetstream.log import JetStreamLog
from storage.log import EventLog
from storage.object_store import ObjectFolder

STOPS = (signal.SIGINT, signal.SIGTERM)
OPEN_DEADLINE_S = 30.0
STOP_DEADLINE_S = 120.0
FAILED = ".failed"
"""Folder beside the runs: for each name of an empty run, the process logs of the last one."""
MADE = ("rollout.completed", "group.rejected", "step.committed")


class Launch:
    """One incarnation of a run, from start to summary. Use it once.

    resumes: the record of the run to resume, in its `folder`; None for a new one. branched: the branch point of a new
    run; None for the base checkpoint.
    """

    def __init__(
        self,
        settings: TrainSettings,
        view: View,
        *,
        resumes: RunRecord | None = None,
        folder: RunFolder | None = None,
        branched: Branched | None = None,
    ) -> None:
        self._settings, self._view, self._resumes = settings, view, resumes
        self._branched = resumes.started.branched if resumes else branched
        self._folder = folder or RunFolder.create(settings.run.runs_dir, settings.run.run)
        self._cluster = Cluster(settings.run.ray_address, self._folder.logs)
        self._server = LogServer(self._folder, settings.run.nats_url, view.note)
        self._progress = Progress(settings.run.run)
        self._roles: Roles | None = None
        self._begun = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._interrupts = 0
        self._has_begun = self._is_empty = False

    async def run(self) -> dict[str, Any]:
        """Run to the end; the summary. Raises a SlimeEventsError with the reason in one sentence."""
        trainer = self._settings.trainer
        Architecture.read(trainer.hf_checkpoint).check_flags(trainer.megatron)
        with holding(self._folder) as before, self._stopping():
            try:
                await self._put_branch_checkpoint()
                # Nothing heavy starts before the log answers.
                async with self._server.running(before) as url, self._open(url) as log:
                    self._seconds["nats"] = time.perf_counter() - self._begun
                    try:
                        await self._launch(log, url)
                    except SlimeEventsError:
                        await self._look_back(log)
                        raise
            except SlimeEventsError as error:
                if self._is_empty or (self._folder.is_ours and not self._folder.settings.exists()):
                    self._discard(error)
                elif self._folder.settings.exists() and not isinstance(error, ConfigError):
                    self._summarise(failure=str(error))
                raise
            return self._summarise()

    async def _look_back(self, log: JetStreamLog) -> None:
        """Check whether a failed new run is empty, once nobody writes to its log any more."""
        self._is_empty = self._has_begun and self._folder.is_ours and await is_empty_run(log)
        if self._is_empty:
            await clear_stores(log, self._settings)

    def _discard(self, error: SlimeEventsError) -> None:
        """Remove an empty run. The error names the place of its process logs."""
        kept = discard_folder(self._folder)
        there = f" (logs in {kept})" if kept else ""
        error.args = (str(error).replace(f" (logs in {self._folder.logs})", there), *error.args[1:])

    async def _put_branch_checkpoint(self) -> None:
        """Before anything of the run exists: a branch that cannot begin leaves nothing behind."""
        if self._branched is not None:
            checkpoints = self._settings.trainer.save or str(self._folder.checkpoints)
            await put_branch_checkpoint(self._branched, self._settings, checkpoints, note=self._view.note)
            self._seconds["beginning"] = time.perf_counter() - self._begun

    async def _launch(self, log: JetStreamLog, url: str) -> None:
        if self._resumes is not None:
            await check_absent(log)
        async with present(log), self._running_cluster() as starting:
            incarnation = await self._begin(log)
            self._has_begun = True
            await asyncio.shield(starting)  # what is being started can be stopped only once it is there
            check_cancelled()
            self._roles = Roles(self._cluster, self._settings, self._address(url, incarnation))
            worker = Participant(log, LAUNCHER, incarnation=incarnation)
            arguments = self._progress, self._view, self._settings, self._folder, self._server.check
            try:
                self._roles.start_all()
                await Supervisor(worker, self._roles, *arguments).watch()
            finally:
                self._roles.let_go()

    @contextlib.asynccontextmanager
    async def _open(self, url: str) -> Any:
        log = await JetStreamLog.open(
            url,
            self._settings.run.run,
            create=self._resumes is None,
            replicas=self._settings.run.nats_replicas,
            deadline_s=OPEN_DEADLINE_S,
            on_wait=self._view.note,
        )
        self._server.stage_in_memory()
        try:
            yield log
        finally:
            await log.close()

    @contextlib.asynccontextmanager
    async def _running_cluster(self) -> Any:
        # Ray's processes end with the thread that has started them: one of asyncio's stays.
        starting = asyncio.create_task(asyncio.to_thread(self._timed, "ray", self._cluster.start))
        try:
            yield starting
        finally:
            starting.add_done_callback(lambda task: error_of(task))  # it is no news any more
            if not await ended_within(STOP_DEADLINE_S, self._cluster.stop):
                self._view.note(f"Ray did not stop within {STOP_DEADLINE_S:.0f} s: end what is left of it by hand")

    def _timed(self, name: str, call: Any) -> None:
        begun = time.perf_counter()
        call()
        self._seconds[name] = time.perf_counter() - begun

    async def _begin(self, log: EventLog) -> Incarnation:
        worker = Participant(log, LAUNCHER)
        if self._resumes is None:
            return await announce_start(worker, self._settings, self._folder, self._branched)
        return await announce_resume(worker, self._resumes, self._settings, self._folder)

    def _address(self, url: str, incarnation: Incarnation) -> RunAddress:
        run, folder = self._settings.run, self._folder
        return RunAddress(
            run=run.run,
            nats_url=url,
            folder=str(folder.path),
            blob_url=run.blob_url or str(folder.blobs),
            archive_url=run.archive_url or str(folder.archive),
            archive_seconds=run.archive_seconds,
            weights_url=str(folder.weights),
            otlp_endpoint=run.otlp_endpoint,
            trace_share=run.trace_share,
            incarnation=incarnation,
        )

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """While inside, SIGINT and SIGTERM end the run in order: what has been started is stopped, nothing stays."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in STOPS:
            loop.add_signal_handler(number, self._interrupt, task)
        try:
            yield
        finally:
            for number in STOPS:
                loop.remove_signal_handler(number)

    def _interrupt(self, task: asyncio.Task[Any]) -> None:
        self._interrupts += 1
        if self._interrupts > 1 or self._roles is None:
            task.cancel()
            return
        self._view.note("stopping: what is acked is in the log (Ctrl-C again to stop at once)")
        self._roles.stop(CONDUCTOR)

    def _summarise(self, failure: str | None = None) -> dict[str, Any]:
        progress, joined = self._progress, {worker.role: worker.seconds for worker in self._progress.workers}
        startup = progress.time.startup
        summary = progress.summary() | {
            **({"phase": RunPhase.FAILED.value} if failure else {}),
            "failure": failure,
            "seconds_total": time.perf_counter() - self._begun,
            "seconds_startup": None if startup is None else startup / 1e9 + self._seconds["nats"],
            "startup": self._seconds | {f"{role}.{k}": v for role, parts in joined.items() for k, v in parts.items()},
            "folder": str(self._folder.path),
        }
        self._folder.summary.write_text(json.dumps(summary, indent=2) + "\n")
        self._view.close()
        return summary


def launch(
    settings: TrainSettings,
    view: View,
    *,
    resumes: RunRecord | None = None,
    folder: RunFolder | None = None,
    branched: Branched | None = None,
) -> dict[str, Any]:
    """Run `settings` to the end and return the summary. KeyboardInterrupt where a signal ended it at once."""

    async def run() -> dict[str, Any]:
        return await Launch(settings, view, resumes=resumes, folder=folder, branched=branched).run()

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def is_empty_run(log: JetStreamLog) -> bool:
    """Whether a failed run made nothing: no complete rollout, rejected group, committed step or prompt from outside.

    False where the log does not answer.
    """
    try:
        for kind in MADE:
            if await log.last(of_type(log.run, kind)) is not None:
                return False
        async for recorded in log.read(1, of_type(log.run, "prompt.submitted")):
            event = recorded.envelope.event
            if isinstance(event, PromptSubmitted) and event.dataset == INBOX:
                return False
    except SlimeEventsError:
        return False
    return True


async def clear_stores(log: JetStreamLog, settings: TrainSettings) -> None:
    """Remove what an empty run has outside of its folder: its archive, and its log on a server of somebody else."""
    url, run = settings.run.archive_url, settings.run
    with contextlib.suppress(SlimeEventsError):  # what is left then is of no use, and harms nobody
        if url and await asyncio.to_thread(_first_of, url, log.run) == await _first(log):
            await asyncio.to_thread(ObjectFolder(f"{url.rstrip('/')}/{log.run}").remove)
        if run.nats_url:
            await log.remove()


def discard_folder(folder: RunFolder) -> Path | None:
    """Remove what a launcher has put into the run's folder; the new place of the process logs, if there are any.

    Other files in the folder stay, and the folder with them. The logs may be the only place with the full reason.
    """
    kept = _keep_logs(folder)
    folder.remove()
    return kept


async def _first(log: JetStreamLog) -> bytes:
    """The bytes of run.started, which has the same id in every run of that name."""
    async for recorded in log.read():
        return recorded.data
    return b""


def _first_of(url: str, run: str) -> bytes:
    first = next(ArchiveReader(url, run).read(), None)
    return first.data if first else b""


def _keep_logs(folder: RunFolder) -> Path | None:
    if not folder.logs.is_dir() or not any(file.stat().st_size for file in folder.logs.iterdir()):
        return None
    kept = folder.path.parent / FAILED / folder.run
    shutil.rmtree(kept, ignore_errors=True)
    kept.parent.mkdir(exist_ok=True)
    shutil.move(folder.logs, kept)
    return kept

"""`launch`: one training run from an empty folder, or from where it stopped, to its summary.

    lock on the folder -> NATS server ─┐
                          Ray ─────────┴─> run.started | run.resumed
                     -> conductor, grader, archivist, trainer (Ray actors), engines (Ray Serve)
                     -> follow the log until run.finished | run.failed -> summary.json

The launcher holds no state: it starts processes, watches the log and their ends, and says what it sees. A run that is
resumed goes on from its log alone: nothing that the launcher before this one held is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Iterator
from typing import Any

from actors.megatron.architecture import Architecture
from schemas.errors import ConfigError, SlimeEventsError
from schemas.runs import Branched
from slime_events.analysis.model.progress import Progress
from slime_events.app.launch.abandonable import ended_within
from slime_events.app.launch.branch_checkpoint import put_beginning
from slime_events.app.launch.cluster import Cluster
from slime_events.app.launch.empty_run import came_to_nothing, clear, discard
from slime_events.app.launch.launcher_presence import check_absent, present
from slime_events.app.launch.log_server import LogServer
from slime_events.app.launch.role_end import error_of
from slime_events.app.launch.roles import CONDUCTOR, Roles
from slime_events.app.launch.run_announcement import announce_resume, announce_start
from slime_events.app.launch.run_lock import holding
from slime_events.app.launch.run_record import Standing
from slime_events.app.launch.supervisor import LAUNCHER, Supervisor
from slime_events.app.launch.view import View
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation, RunAddress
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.state.run import RunPhase
from storage.cancellation import check_cancelled
from storage.jetstream.log import JetStreamLog
from storage.log import EventLog

STOPS = (signal.SIGINT, signal.SIGTERM)
OPEN_DEADLINE_S = 30.0
STOP_DEADLINE_S = 120.0


class Launch:
    """One incarnation of a run, from start to summary. Use it once.

    resumes: where the run stands that is to go on, in its `folder`; None for a new one. branched: where a new one goes
    on from, if not from its base checkpoint.
    """

    def __init__(
        self,
        settings: TrainSettings,
        view: View,
        *,
        resumes: Standing | None = None,
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
        self._is_begun = self._left_nothing = False

    async def run(self) -> dict[str, Any]:
        """Run to the end; the summary. Raises a SlimeEventsError with the one sentence that says what ended it."""
        trainer = self._settings.trainer
        Architecture.read(trainer.hf_checkpoint).check_flags(trainer.megatron)
        with holding(self._folder) as before, self._stopping():
            try:
                await self._put_beginning()
                # Nothing heavy starts before the log answers.
                async with self._server.running(before) as url, self._open(url) as log:
                    self._seconds["nats"] = time.perf_counter() - self._begun
                    try:
                        await self._launch(log, url)
                    except SlimeEventsError:
                        await self._look_back(log)
                        raise
            except SlimeEventsError as error:
                if self._left_nothing or (self._folder.is_ours and not self._folder.settings.exists()):
                    self._discard(error)
                elif self._folder.settings.exists() and not isinstance(error, ConfigError):
                    self._summarise(failure=str(error))
                raise
            return self._summarise()

    async def _look_back(self, log: JetStreamLog) -> None:
        """At a new run that has failed, once nobody writes to its log any more."""
        self._left_nothing = self._is_begun and self._folder.is_ours and await came_to_nothing(log)
        if self._left_nothing:
            await clear(log, self._settings)

    def _discard(self, error: SlimeEventsError) -> None:
        """A run that came to nothing. The error says where its process logs lie now."""
        kept = discard(self._folder)
        there = f" (logs in {kept})" if kept else ""
        error.args = (str(error).replace(f" (logs in {self._folder.logs})", there), *error.args[1:])

    async def _put_beginning(self) -> None:
        """Before anything of the run is there: a branch that cannot begin leaves nothing behind."""
        if self._branched is not None:
            checkpoints = self._settings.trainer.save or str(self._folder.checkpoints)
            await put_beginning(self._branched, self._settings, checkpoints, note=self._view.note)
            self._seconds["beginning"] = time.perf_counter() - self._begun

    async def _launch(self, log: JetStreamLog, url: str) -> None:
        if self._resumes is not None:
            await check_absent(log)
        async with present(log), self._running_cluster() as starting:
            life = await self._begin(log)
            self._is_begun = True
            await asyncio.shield(starting)  # what is being started can be stopped only once it is there
            check_cancelled()
            self._roles = Roles(self._cluster, self._settings, self._address(url, life))
            worker = Participant(log, LAUNCHER, incarnation=life)
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

    def _address(self, url: str, life: Incarnation) -> RunAddress:
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
            incarnation=life,
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
    resumes: Standing | None = None,
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

"""`launch`: one training run from an empty folder to its summary.

    NATS server ─┐
    Ray ─────────┴─> run.started -> conductor, grader, archivist, trainer (Ray actors), engines (Ray Serve)
                     -> follow the log until run.finished | run.failed | a role dies -> summary.json

The launcher holds no state: it starts processes, watches the log and their ends, and says what it sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import time
from typing import Any, NoReturn

import msgspec

from actors.megatron.architecture import Architecture
from actors.processes import ArchivistActor, ConductorActor, GraderActor, RankActor, TrainerActor
from schemas.errors import DeadlineExceeded, NoSpace, SlimeEventsError, StorageError, TrainerError
from schemas.runs import RunFailed, RunStarted
from serve_apps.deployment import rollout_app
from slime_events.address import RunAddress
from slime_events.config.settings import TrainSettings
from slime_events.config.toml import to_toml
from slime_events.launch.cluster import Cluster
from slime_events.launch.engines import EngineWatch
from slime_events.launch.environment import code_version, environment
from slime_events.launch.view import View
from slime_events.progress import Progress, disagreement
from slime_events.run_folder import RunFolder
from slime_events.state.run import RunPhase
from slime_events.worker import Worker
from storage.connect import record_url
from storage.follow import Follower
from storage.jetstream_log import JetStreamLog
from storage.nats_server import NatsServer

LAUNCHER = "launcher"
STOPS = (signal.SIGINT, signal.SIGTERM)
OPEN_DEADLINE_S = 10.0
END_DEADLINE_S = 60.0
ARCHIVE_DEADLINE_S = 10.0
FAIL_DEADLINE_S = 5.0
LEAST_FREE_BYTES = 16 * 1024 * 1024
STOP_DEADLINE_S = 120.0


class Launch:
    """One run, from start to summary. Use it once."""

    def __init__(self, settings: TrainSettings, view: View) -> None:
        self._settings, self._view = settings, view
        self._folder = RunFolder.create(settings.run.runs_dir, settings.run.run)
        self._cluster = Cluster(settings.run.ray_address, self._folder.logs)
        self._progress = Progress(settings.run.run)
        self._engines = EngineWatch(settings.engine.replicas)
        self._server: NatsServer | None = None
        self._roles: dict[str, Any] = {}
        self._conductor: Any = None
        self._archivist: Any = None
        self._begun = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._interrupts = 0

    async def run(self) -> dict[str, Any]:
        """Run to the end; the summary. Raises a SlimeEventsError with the one sentence that says what ended it."""
        run, trainer = self._settings.run.run, self._settings.trainer
        Architecture.read(trainer.hf_checkpoint).check_flags(trainer.megatron)
        async with contextlib.AsyncExitStack() as stack:
            # Nothing heavy starts before the log answers.
            url = await self._start_server(stack)
            log = await JetStreamLog.open(url, run, deadline_s=OPEN_DEADLINE_S, on_wait=self._view.note)
            stack.push_async_callback(log.close)
            self._seconds["nats"] = time.perf_counter() - self._begun
            cluster = asyncio.create_task(asyncio.to_thread(self._timed, "ray", self._cluster.start))
            stack.push_async_callback(self._stop_cluster, cluster)
            worker = Worker(log, LAUNCHER)
            await worker.say([self._started()])
            self._folder.settings.write_text(to_toml(self._settings))
            await cluster
            self._start_roles(self._address(url))
            await self._watch(worker)
            return self._summarise()

    def _timed(self, name: str, call: Any) -> None:
        begun = time.perf_counter()
        call()
        self._seconds[name] = time.perf_counter() - begun

    async def _start_server(self, stack: contextlib.AsyncExitStack) -> str:
        if self._settings.run.nats_url:
            record_url(self._folder.path, self._settings.run.nats_url)
            return self._settings.run.nats_url
        self._server = await NatsServer.start(self._folder.nats)
        stack.push_async_callback(self._stop_server)
        return self._server.url

    async def _stop_server(self) -> None:
        if self._server is not None:
            await self._server.stop()

    async def _check_server(self) -> None:
        """A server of ours that died is started again on its folder and port; everybody waits for it meanwhile."""
        if self._server is None or self._server.alive:
            return
        self._view.note(f"the NATS server {self._server.pid} of this run has died: starting it again")
        self._server = await NatsServer.start(self._folder.nats)
        self._view.note(f"NATS is back at {self._server.url}; everything acked is there")

    def _started(self) -> RunStarted:
        return RunStarted(
            settings=msgspec.to_builtins(self._settings), code_version=code_version(), environment=environment()
        )

    def _address(self, url: str) -> RunAddress:
        run, folder = self._settings.run, self._folder
        return RunAddress(
            run=run.run,
            nats_url=url,
            folder=str(folder.path),
            blob_url=run.blob_url or str(folder.blobs),
            archive_url=run.archive_url or str(folder.archive),
            weights_url=str(folder.weights),
            otlp_endpoint=run.otlp_endpoint,
            trace_share=run.trace_share,
        )

    def _start_roles(self, address: RunAddress) -> None:
        """All roles at once: each waits in the log for what it needs of the others."""
        settings, cluster = self._settings, self._cluster
        on_gpu = cluster.has_gpus and settings.engine.device != "cpu"
        gpus = 1.0 if on_gpu else 0.0
        engine_gpus = gpus * settings.engine.rollout_num_gpus_per_engine
        app = rollout_app(address, settings.engine, gpus=engine_gpus)
        self._roles["engines"] = asyncio.create_task(
            asyncio.to_thread(self._timed, "serve", lambda: cluster.serve(app, f"rollout-{address.run}"))
        )
        ranks = range(1, settings.trainer.world_size)
        peers = [cluster.actor(RankActor, f"rank{r}-{address.run}", address.folder, r, gpus=gpus) for r in ranks]
        trainer = cluster.actor(TrainerActor, f"trainer-{address.run}", gpus=gpus)
        self._conductor = cluster.actor(ConductorActor, f"conductor-{address.run}")
        grader = cluster.actor(GraderActor, f"grader-{address.run}")
        self._archivist = cluster.actor(ArchivistActor, f"archivist-{address.run}")
        self._roles["trainer"] = _future(trainer.run.remote(address, settings, peers))
        self._roles["conductor"] = _future(self._conductor.run.remote(address, settings))
        self._roles["grader"] = _future(grader.run.remote(address, settings))
        self._roles["archivist"] = _future(self._archivist.run.remote(address))

    async def _watch(self, worker: Worker) -> None:
        """Follow the log to the end of the run, and every role to its own."""
        steps = self._settings.rollout.num_rollout or 0
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self._interrupt)
        try:
            async with Follower(worker.log) as follower:
                while self._progress.state.phase in (RunPhase.NEW, RunPhase.RUNNING):
                    for recorded in await follower.next(wait_s=0.5):
                        line = self._progress.apply(recorded)
                        if line is not None:
                            self._view.step(line, self._progress, steps)
                            if warning := disagreement(line):
                                self._view.note(warning)
                        if news := self._engines.apply(recorded.envelope.event):
                            self._view.note(news)
                    self._view.tick(self._progress, steps)
                    await self._check_server()
                    await self._check_room(worker)
                    await self._check_roles(worker)
                    await self._check_engines(worker)
            if self._progress.state.phase is RunPhase.FAILED:
                await self._end(self._progress.state.failure)
            await self._await_roles()
        finally:
            for number in STOPS:
                loop.remove_signal_handler(number)

    async def _check_room(self, worker: Worker) -> None:
        """While the last of the disk is left, so that the log still takes the reason. NATS on a full disk is silent."""
        free = shutil.disk_usage(self._folder.path).free
        if free < LEAST_FREE_BYTES:
            reason = f"{self._folder.path} has {free >> 20} MB free: make room, what is acked is in the log"
            await self._fail(worker, LAUNCHER, reason, NoSpace)

    async def _check_roles(self, worker: Worker) -> None:
        for role, task in self._roles.items():
            if task.done() and task.exception() is not None:
                await self._fail(worker, role, _reason(task.exception()))

    async def _check_engines(self, worker: Worker) -> None:
        if reason := self._engines.hopeless:
            await self._fail(worker, "engine", reason)

    async def _fail(
        self, worker: Worker, role: str, reason: str, kind: type[SlimeEventsError] = TrainerError
    ) -> NoReturn:
        """End the run for what a role did: in the log, if it still answers, and here."""
        if self._progress.state.phase in (RunPhase.NEW, RunPhase.RUNNING):
            failed = RunFailed(role=role, reason=reason, at_events=self._progress.state.events)
            with contextlib.suppress(StorageError, TimeoutError):
                async with asyncio.timeout(FAIL_DEADLINE_S):
                    await worker.say_again(failed)
        await self._end(reason if role == LAUNCHER else f"the {role} ended: {reason}", kind)

    async def _end(self, failure: str, kind: type[SlimeEventsError] = TrainerError) -> NoReturn:
        """A failed run is archived as far as it came; what else its roles have to say adds nothing."""
        self._archivist.stop.remote()
        await asyncio.wait([self._roles["archivist"]], timeout=ARCHIVE_DEADLINE_S)
        raise kind(f"run {self._settings.run.run} failed (logs in {self._folder.logs}): {failure}")

    async def _await_roles(self) -> None:
        """All roles of a finished run to their ends."""
        _, late = await asyncio.wait(self._roles.values(), timeout=END_DEADLINE_S)
        names = [role for role, task in self._roles.items() if task in late]
        if names:
            raise DeadlineExceeded(f"the run is over, but {', '.join(names)} did not end in {END_DEADLINE_S:.0f} s")
        for role, task in self._roles.items():
            if task.exception() is not None:
                raise TrainerError(f"the run is over, but the {role} ended badly: {_reason(task.exception())}")

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1 or self._conductor is None:
            raise KeyboardInterrupt
        self._view.note("stopping: what is acked is in the log (Ctrl-C again to stop at once)")
        self._conductor.stop.remote()

    async def _stop_cluster(self, starting: asyncio.Task[None]) -> None:
        with contextlib.suppress(Exception):
            await starting
        await asyncio.wait_for(asyncio.to_thread(self._cluster.stop), STOP_DEADLINE_S)

    def _summarise(self) -> dict[str, Any]:
        joined = {worker.role: worker.seconds for worker in self._progress.workers}
        summary = self._progress.summary() | {
            "seconds_total": time.perf_counter() - self._begun,
            "seconds_startup": (self._progress.first_version_at - self._progress.started_at) / 1e9
            + self._seconds["nats"],
            "startup": self._seconds | {f"{role}.{k}": v for role, parts in joined.items() for k, v in parts.items()},
            "folder": str(self._folder.path),
        }
        self._folder.summary.write_text(json.dumps(summary, indent=2) + "\n")
        self._view.close()
        return summary


def _future(ref: Any) -> asyncio.Future[Any]:
    return asyncio.wrap_future(ref.future())


def _reason(error: BaseException | None) -> str:
    """The user's line of an actor's error: the cause that Ray wraps, without its remote traceback."""
    from ray.exceptions import RayActorError

    cause = getattr(error, "cause", None) or error
    if isinstance(cause, SlimeEventsError):
        return str(cause)
    if isinstance(cause, RayActorError):
        return "its process is gone (killed, out of memory, or crashed)"
    return f"{type(cause).__name__}: {str(cause).strip().splitlines()[-1] if str(cause).strip() else ''}"


def launch(settings: TrainSettings, view: View) -> dict[str, Any]:
    """Run `settings` to the end and return the summary."""
    return asyncio.run(Launch(settings, view).run())

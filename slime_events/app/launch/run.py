"""`Launch`: one training run from an empty folder, or from where it stopped, to its summary.

    lock on the folder -> NATS server ─┐
                          Ray ─────────┴─> run.started | run.resumed
                     -> conductor, grader, archivist, trainer (Ray actors), engines (Ray Serve)
                     -> follow the log until run.finished | run.failed -> summary.json

The launcher holds no state: it starts processes, watches them and the log, and reports. A resumed run continues from
its log alone.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from msgspec import structs

from actors.megatron.families.registry import read_architecture
from schemas.errors import ConfigError, ImpossibleCombination, SlimeEventsError
from schemas.ids import INBOX
from schemas.placements import PlacementPlanned
from schemas.prompts import PromptSubmitted
from schemas.runs import Branched
from schemas.subjects import of_type
from schemas.weights import WeightsPublished
from serve_apps.http.gateway.settings import parse_listen
from serve_apps.http.gateway.sources import Scope, Sources
from slime_events.app.launch.abandonable import ended_within
from slime_events.app.launch.cluster import Cluster
from slime_events.app.launch.launcher_presence import check_absent, present
from slime_events.app.launch.log_server import LogServer
from slime_events.app.launch.metrics_process import metrics_written
from slime_events.app.launch.node_probe import check_nodes, copy_models
from slime_events.app.launch.offered_console import console_offered
from slime_events.app.launch.ray_place import ray_place
from slime_events.app.launch.roles import CONDUCTOR, Roles, error_of
from slime_events.app.launch.run_announcement import announce_resume, announce_start
from slime_events.app.launch.run_lock import Holder, holding
from slime_events.app.launch.run_placement import plan_placement
from slime_events.app.launch.run_record import RunRecord
from slime_events.app.launch.supervisor import LAUNCHER, Supervisor
from slime_events.app.launch.view import View
from slime_events.core.config.derivations import on_device
from slime_events.core.config.secrets import secrets_of
from slime_events.core.config.settings import TrainSettings
from slime_events.core.planning.bundles import split_of
from slime_events.core.run.local_models import LocalModels
from slime_events.core.run.network import log_host
from slime_events.core.run.participant import Participant
from slime_events.core.run.places import cache_variables, store_variables, weights_place
from slime_events.core.run.run_address import Incarnation, RunAddress
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_settings import nats_place
from slime_events.core.run.shared_places import marked, places_of, written_urls
from slime_events.core.state.run import RunPhase
from slime_events.model.progress import Progress
from storage.archive.reader import ArchiveReader
from storage.cancellation import check_cancelled
from storage.file_access import close_to_others, limited_files
from storage.folders.places import open_folders, parent_of
from storage.jetstream.address import NatsAddress
from storage.jetstream.log import JetStreamLog
from storage.nats.ports import HOST, free_port, with_port
from storage.object_store import ObjectFolder

STOPS = (signal.SIGINT, signal.SIGTERM)
STOP_DEADLINE_S = 120.0
FAILED = ".failed"
"""Folder beside the runs with process logs: for each name, those of the last failed run that made nothing."""
MADE = ("rollout.completed", "group.rejected", "step.committed", "prompt.offered")


class Launch:
    """One incarnation of a run, from start to summary. Use an instance once.

    resumes: record of the run to resume, in its `folder`; None for a new run. branched: branch point of a new run; None
    for the base checkpoint.
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
        host = HOST if settings.run.nats_url else log_host(ray_place(settings.run.ray_address))
        self._recorded = on_device(settings, settings.engine.device)
        self._copies = LocalModels.of(self._recorded)
        self._settings, self._view, self._resumes = self._copies.settings, view, resumes
        self._branched = resumes.started.branched if resumes else branched
        self._folder = folder or RunFolder.create(settings.run.runs_dir, settings.run.run, settings.run.file_access)
        self._server = LogServer(
            self._folder,
            settings.run.run,
            nats_place(settings.run),
            view.note,
            agents=settings.rollout.agents,
            host=host,
        )
        self._before: Holder | None = None
        self._progress = Progress(settings.run.run)
        self._roles: Roles | None = None
        self._begun = time.perf_counter()
        self._seconds: dict[str, float] = {}
        self._interrupts = 0
        self._has_begun = False

    def run_to_end(self) -> dict[str, Any]:
        """Call `run` in a new event loop. Raises KeyboardInterrupt if a signal ended the run at once."""
        try:
            return asyncio.run(self.run())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    async def run(self) -> dict[str, Any]:
        """Run to the end, and return the summary. Raises a SlimeEventsError with the reason."""
        trainer = self._settings.trainer
        read_architecture(trainer.hf_checkpoint).check_flags(trainer.megatron)
        is_empty, access = False, self._settings.run.file_access
        os.environ.update(cache_variables(self._settings.run))
        with limited_files(access), holding(self._folder) as before, self._stopping():
            if close_to_others(self._folder.path, access):
                self._view.note(f"note: every user could read {self._folder.path}; now --file-access applies")
            self._before = before
            try:
                if self._branched is not None:
                    from slime_events.app.launch.branch_checkpoint import put_branch_checkpoint

                    # Before anything of the run exists, so that a branch that cannot begin leaves nothing behind.
                    checkpoints = trainer.save or str(self._folder.checkpoints)
                    await put_branch_checkpoint(self._branched, self._settings, checkpoints, note=self._view.note)
                    self._seconds["beginning"] = time.perf_counter() - self._begun
                # Nothing heavy starts before the log replies.
                run, new = self._settings.run, self._resumes is None
                async with self._server.log(
                    before, create=new, replicas=run.nats_replicas, archive_url=run.log_leaves_for
                ) as (address, log):
                    self._seconds["nats"] = time.perf_counter() - self._begun
                    try:
                        await self._launch(log, address)
                    except SlimeEventsError:
                        # Checked here, when no role writes to the log any more.
                        is_empty = self._has_begun and self._folder.is_ours and await is_empty_run(log)
                        if is_empty:
                            await clear_stores(log, self._settings)
                        raise
            except SlimeEventsError as error:
                if is_empty or (self._folder.is_ours and not self._folder.settings.exists()):
                    kept = discard_folder(self._folder)
                    there = f" (logs in {kept})" if kept else ""
                    error.args = (str(error).replace(f" (logs in {self._folder.logs})", there), *error.args[1:])
                elif self._folder.settings.exists() and not isinstance(error, ConfigError):
                    self._summarise(failure=str(error))
                raise
            return self._summarise()

    async def _launch(self, log: JetStreamLog, server: NatsAddress) -> None:
        if self._resumes is not None:
            await check_absent(log)
        if self._settings.run.log_keep_steps is not None and not log.lets_go:
            raise ImpossibleCombination(
                f"--log-keep-steps cannot be set for run {log.run}, whose log keeps all events: set it when a run is "
                "started or restored from its archive"
            )
        async with present(log), self._running_cluster() as (cluster, starting):
            worker = Participant(log, LAUNCHER)
            if self._resumes is None:
                incarnation = await announce_start(worker, self._recorded, self._folder, self._branched)
            else:
                incarnation = await announce_resume(worker, self._resumes, self._recorded, self._folder)
            self._has_begun = True
            if (where := self._settings.run.tinker) is not None:
                self._view.note(client_words(self._folder, where))
            await asyncio.shield(starting)  # Ray can be stopped only after it has started
            self._handle_signals()  # Ray's own handler treats SIGTERM as a crash: it prints stacks, and then aborts
            if self._before is not None and self._settings.run.ray_address:
                await self._end_leftovers(cluster, self._before)
            worker = Participant(log, LAUNCHER, incarnation=incarnation)
            address = self._address(server, incarnation)
            if self._settings.run.ray_address:
                address = await asyncio.to_thread(self._probed, address)
                await asyncio.to_thread(cluster.look)  # without machines that Ray has lost meanwhile
                check_cancelled()
            planned = await self._place(cluster, worker, incarnation)
            check_cancelled()
            self._roles = Roles(cluster, self._settings, address, planned)
            arguments = self._progress, self._view, self._settings, self._folder
            try:
                self._roles.start_all()
                async with (
                    metrics_written(self._settings.metrics, self._folder, self._view.note),
                    console_offered(self._settings.run.console_port, self._folder, self._view.note),
                ):
                    await Supervisor(worker, self._roles, *arguments).watch()
            finally:
                self._roles.let_go()

    @contextlib.asynccontextmanager
    async def _running_cluster(self) -> AsyncIterator[tuple[Cluster, asyncio.Task[None]]]:
        cluster = Cluster(self._settings.run.ray_address, self._folder.ray_token)
        # Ray's processes end with the thread that has started them; asyncio's threads stay.
        starting = asyncio.create_task(asyncio.to_thread(self._start, cluster))
        try:
            yield cluster, starting
        finally:
            starting.add_done_callback(lambda task: error_of(task))  # marks a late error as retrieved
            if not await ended_within(STOP_DEADLINE_S, cluster.stop):
                self._view.note(f"Ray did not stop within {STOP_DEADLINE_S:.0f} s: end its processes by hand")

    def _start(self, cluster: Cluster) -> None:
        begun = time.perf_counter()
        cluster.start()
        self._seconds["ray"] = time.perf_counter() - begun

    def _probed(self, address: RunAddress) -> RunAddress:
        """Mark what all machines must see, and ask each one. Raises InvalidValue with those that do not see it."""
        checkpoints = str(self._folder.checkpoints)
        urls = written_urls(self._settings, address.weights_url, address.blob_url, checkpoints)
        text = secrets.token_hex(16)
        shared = tuple(marked(place, text) for place in places_of(self._settings, address.folder, urls))
        address = structs.replace(address, shared=(*shared, *self._copies.places()))
        if self._settings.engine.rollout_external_engine_addrs:
            from slime_events.app.launch.external_preflight import check_reads_weights

            check_reads_weights(self._settings, address.weights_url)
        check_nodes(address, of_gpus=self._settings.engine.device == "cuda")
        if self._copies.paths:
            copy_models(address)
        return address

    async def _end_leftovers(self, cluster: Cluster, before: Holder) -> None:
        """End what a killed launcher has left on other machines. Those of this machine have ended before the log."""
        if count := await asyncio.to_thread(cluster.end_leftovers, before.mark, self._settings.run.run):
            self._view.note(f"ended {count} processes elsewhere, left by launcher {before.pid}, which was killed")

    async def _place(self, cluster: Cluster, worker: Participant, incarnation: Incarnation) -> PlacementPlanned:
        """Record where the run's processes will be, or refuse a run that has too few GPUs; then reserve the GPUs."""
        planned = await asyncio.to_thread(
            plan_placement, self._settings, cluster.nodes, incarnation.number, cluster.homes
        )
        await worker.append([planned])
        await asyncio.to_thread(cluster.place, planned)
        if split := split_of(planned):
            self._view.note(
                f"note: {split} of {planned.ranks // planned.together} groups of {planned.together} tensor parallel "
                "ranks are on several machines, as they do not fit on one: each of their layers waits for the network"
            )
        return planned

    def _address(self, server: NatsAddress, incarnation: Incarnation) -> RunAddress:
        run, folder = self._settings.run, self._folder
        return RunAddress(
            run=run.run,
            nats=server,
            folder=str(folder.path),
            blob_url=run.blob_url or str(folder.blobs),
            archive_url=run.archive_url or str(folder.archive),
            archive_seconds=run.archive_seconds,
            log_keep_steps=run.log_keep_steps,
            weights_url=weights_place(run, folder),
            otlp_endpoint=run.otlp_endpoint,
            trace_share=run.trace_share,
            incarnation=incarnation,
            secrets=self._secrets(),
            file_access=run.file_access,
            models=self._models(),
        )

    def _models(self) -> dict[str, str]:
        """Return an address for the router of each model that is not trained: of this machine, at a free port."""
        names = dict.fromkeys(group.model for group in self._settings.engine.groups if not group.trained)
        if not names:
            return {}
        host = log_host(ray_place(self._settings.run.ray_address))
        return {name: with_port(host, free_port(host)) for name in names}

    def _secrets(self) -> dict[str, str]:
        """Return variables for processes on other machines. On this machine they inherit those of object stores."""
        run = self._settings.run
        stores = store_variables() if run.ray_address else {}
        return stores | secrets_of(self._settings) | cache_variables(run)

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """While inside, let SIGINT and SIGTERM end the run in order, with all of its processes."""
        self._handle_signals()
        try:
            yield
        finally:
            for number in STOPS:
                asyncio.get_running_loop().remove_signal_handler(number)

    def _handle_signals(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in STOPS:
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt, task)

    def _interrupt(self, task: asyncio.Task[Any]) -> None:
        self._interrupts += 1
        if self._interrupts > 1 or self._roles is None:
            task.cancel()
            return
        self._view.note("stopping: all acked events are in the log (Ctrl-C again to stop at once)")
        self._roles.stop(CONDUCTOR)

    def _summarise(self, failure: str | None = None) -> dict[str, Any]:
        progress, figures = self._progress, self._progress.figures
        joined, startup = {worker.role: worker.seconds for worker in figures.workers}, figures.time.startup
        summary = progress.summary() | {
            **({"phase": RunPhase.FAILED.value} if failure else {}),
            "failure": failure,
            "seconds_total": time.perf_counter() - self._begun,
            "seconds_startup": None if startup is None else startup / 1e9 + self._seconds["nats"],
            "startup": self._seconds | {f"{role}.{k}": v for role, parts in joined.items() for k, v in parts.items()},
            "folder": str(self._folder.path),
        }
        with contextlib.suppress(OSError) if failure else contextlib.nullcontext():  # a full disk may be the failure
            self._folder.summary.write_text(json.dumps(summary, indent=2) + "\n")
        self._view.close()
        return summary


def client_words(folder: RunFolder, where: str) -> str:
    """Return the variables for a client of Tinker's SDK. Issues the first client's key, which is shown only once."""
    sources, (host, port) = Sources(folder.path), parse_listen(where, "--tinker")
    address = f"TINKER_BASE_URL=http://{f'[{host}]' if ':' in host else host}:{port}"
    if any(sources.rights(name).allows(Scope.TINKER) for name in sources.names):
        return f"clients of Tinker's SDK connect with {address} and the key issued before"
    token = sources.issue("tinker", [Scope.TINKER])
    return f"clients of Tinker's SDK connect with {address} TINKER_API_KEY=tml-{token}"


async def is_empty_run(log: JetStreamLog) -> bool:
    """Whether a failed run made nothing: no complete rollout, rejected group, committed step or prompt from outside.

    False if the log does not reply.
    """
    try:
        if any([await log.last(of_type(log.run, kind)) for kind in MADE]):
            return False
        prompts = [recorded.envelope.event async for recorded in log.read(1, of_type(log.run, "prompt.submitted"))]
    except SlimeEventsError:
        return False
    return not any(isinstance(prompt, PromptSubmitted) and prompt.dataset == INBOX for prompt in prompts)


async def clear_stores(log: JetStreamLog, settings: TrainSettings) -> None:
    """Remove what an empty run has outside its folder: its archive, and its log on the user's NATS server."""
    url, run = settings.run.archive_url, settings.run
    with contextlib.suppress(SlimeEventsError):  # the rest is harmless
        if url:
            # run.started has the same id in every run of a name, but different bytes.
            archived = await asyncio.to_thread(lambda: next(ArchiveReader(url, log.run).read(), None))
            started = await anext(log.read(), None)
            if archived and started and archived.data == started.data:
                await asyncio.to_thread(ObjectFolder(f"{url.rstrip('/')}/{log.run}").remove)
        if run.weights_url:
            async for recorded in log.read(1, of_type(log.run, "weights.published")):
                if isinstance(published := recorded.envelope.event, WeightsPublished):
                    place, name = parent_of(published.url)
                    await asyncio.to_thread(open_folders(place).remove, [name])
        if run.nats_url:
            await log.remove()


def discard_folder(folder: RunFolder) -> Path | None:
    """Remove the launcher's files from the run's folder, and return the new folder of its process logs, if any.

    Keeps other files. The process logs are moved, as they may be the only place with the full reason of a failure.
    """
    kept = None
    if folder.logs.is_dir() and any(file.stat().st_size for file in folder.logs.iterdir()):
        kept = folder.path.parent / FAILED / folder.run
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(exist_ok=True)
        shutil.move(folder.logs, kept)
    folder.remove()
    return kept

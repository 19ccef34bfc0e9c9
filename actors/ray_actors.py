"""The Ray actors: a class per role, which opens the role's resources and runs it until the run is over."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from actors.archivist import Backoff, SealPolicy, TrimLog, archive_run, retried
from actors.conductor import Conductor, Readers
from actors.grader import Grader
from actors.log_keeper import LogKeeper
from actors.offered_prompts import OfferedPrompts
from actors.offered_rollouts import OfferedRollouts
from actors.recorded_rollout_reader import RecordedRolloutReader
from actors.step_samples import StepSamples
from actors.trainer.ranks import rendezvous_address
from schemas.devices import Side
from slime_events.core.checkpoint.vocabulary import vocabulary_of
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.devices.device_share import DeviceShare
from slime_events.core.planning.homes import MOVED, Home
from slime_events.core.run.join import join_run, open_log
from slime_events.core.run.participant import Participant
from slime_events.core.run.process_environment import rank_environment, rank_secrets
from slime_events.core.run.run_address import RunAddress
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.core.run.served_models import ServedModels
from slime_events.core.run.shared_places import SharedPlace, require_places
from slime_events.core.state.keeper import StateKeeper
from slime_events.core.state.snapshot import Snapshot, Snapshots, low_water, training_start
from slime_events.core.telemetry.printed import copy_output_to_log
from slime_events.core.telemetry.process_log import setup_logging
from slime_events.core.tokens.trajectory import Fetch
from slime_events.loop.conductor.cycle import Policy
from slime_events.loop.conductor.outside_prompts import OutsidePrompts
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.prompts.archived_prompts import archived_prompts
from slime_events.loop.training.training_state import read_training_state
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.rewards.dispatcher import Dispatcher
from slime_events.plugins.step_functions import StepFunctions
from storage.archive.reader import ArchiveReader
from storage.archive.writer import ArchiveWriter, blobs_to_archive
from storage.blobs import BlobStore
from storage.cancellation import end_all
from storage.group_commit import GroupCommit
from storage.payloads import fetch, offload_async

if TYPE_CHECKING:
    from actors.backends import Backend

T = TypeVar("T")


class ConductorActor:
    def __init__(self) -> None:
        self._conductor: Conductor | None = None
        self._stop_asked = False

    async def run(self, address: RunAddress, settings: TrainSettings) -> str:
        """Conduct until the end of the run; return the run's last phase."""
        begun = time.perf_counter()
        data = settings.data
        async with join_run(address, "conductor") as worker, contextlib.AsyncExitStack() as stack:
            policy = Policy.of(settings)
            plan = policy.plan
            archive = await archived_prompts(data, _samples_where, samples=plan.samples, ahead=plan.ahead)
            recorded = (
                await stack.enter_async_context(open_run(archive.path)) if archive and data.reuses_rollouts else None
            )
            shown = ArgsView.of_run(settings, address.models)
            checkpoint = settings.engine.hf_checkpoint
            # Load prompts in a second thread, since the first decisions after a restart often need no prompt. Not if
            # the conductor runs a user's code: two threads that import packages with circular imports see partly
            # initialized modules.
            ahead = not settings.conductor_runs_functions
            feed = PromptFeed.open(data, settings.evaluation, settings.rollout, checkpoint, archive, shown, ahead=ahead)
            blobs = BlobStore(address.blob_url)
            offload = partial(offload_async, blobs=blobs)
            finishing = _finishing(settings, worker, partial(fetch, blobs=blobs))
            self._conductor = Conductor(
                worker,
                policy,
                feed,
                offload,
                deadline_s=settings.rollout.rollout_deadline,
                keeper=StateKeeper(_snapshots(address), address.archive_url),
                readers=Readers(
                    RecordedRolloutReader(worker.id, recorded, vocabulary_of(checkpoint)),
                    finishing,
                    OfferedPrompts(worker.log, OutsidePrompts.of(settings, feed.tokenizer)),
                    OfferedRollouts(worker.log, worker.id, partial(fetch, blobs=blobs)),
                ),
            )
            if self._stop_asked:
                self._conductor.stop()
            await worker.join({"ready": time.perf_counter() - begun})
            return (await self._conductor.run()).value

    async def stop(self) -> None:
        """Request a clean end, also before conducting has begun."""
        self._stop_asked = True
        if self._conductor is not None:
            self._conductor.stop()


class GraderActor:
    async def run(self, address: RunAddress, settings: TrainSettings) -> None:
        """Grade until the end of the run."""
        begun = time.perf_counter()
        async with join_run(address, "grader") as worker:
            shown = ArgsView.of_run(settings, address.models).as_dict()
            rollout = settings.rollout
            own = rollout.custom_generate_function_path or rollout.rollout_sample_hook_path
            named = own or settings.evaluation.has_functions  # these functions may choose a sample's grader
            sees_tokens = settings.reward.custom_rm_path or named
            blobs = BlobStore(address.blob_url)
            reading = partial(fetch, blobs=blobs) if sees_tokens else None
            output = Path(address.folder) / "logs" / "graders.log"
            served = ServedModels()
            ready = partial(served.all_there, address.models) if address.models else None
            dispatcher = Dispatcher(settings.reward, args=shown, log=output, ready=ready)
            async with dispatcher, GroupCommit(worker.log) as commit, _following(served, worker, address.models):
                snapshot = await _snapshots(address).newest(worker.log)
                start = low_water(snapshot.state) if snapshot else 1
                await worker.join({"ready": time.perf_counter() - begun})
                whole_groups = settings.reward.group_rm
                offload = partial(offload_async, blobs=blobs)
                await Grader(
                    worker, dispatcher, commit, whole_groups=whole_groups, start=start, fetch=reading, offload=offload
                ).run()


@contextlib.asynccontextmanager
async def _following(served: ServedModels, worker: Participant, models: Collection[str]) -> AsyncIterator[None]:
    """Follow the servers of models inside the block, if there are any."""
    tasks = [asyncio.create_task(served.follow(worker))] if models else []
    try:
        yield
    finally:
        await end_all(*tasks)


class ArchivistActor:
    """Copies the log to object storage during the run."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()

    async def run(self, address: RunAddress) -> None:
        """Archive until the run's last event is archived, or until `stop`."""
        async with join_run(address, "archivist") as worker:
            blobs = blobs_to_archive(address.blob_url, address.archive_url, address.folder)
            opening = partial(asyncio.to_thread, ArchiveWriter, address.archive_url, address.run, blobs=blobs)
            await worker.join({})
            writer = await retried("the archive's store", opening, Backoff())
            policy = SealPolicy(max_age_s=address.archive_seconds)
            async with _keeper(address) as trim_log:
                await archive_run(worker.log, writer, worker.id, stop=self._stop, policy=policy, trim_log=trim_log)

    async def stop(self) -> None:
        """Seal all events so far, and end."""
        self._stop.set()


class TrainerActor:
    """Trains with rank 0 in this process; the other ranks are `RankActor`s."""

    async def run(
        self, address: RunAddress, settings: TrainSettings, peers: Sequence[Any], homes: Sequence[Home] = ()
    ) -> int:
        """Train until the end of the run; return the last version.

        peers: Ray handles of the other ranks. homes: planned machine of each rank; empty if Ray cannot choose another.
        """
        from actors.trainer.commanded import CommandedTrainer
        from actors.trainer.ray_ranks import RayRanks
        from actors.trainer.trainer import Trainer
        from actors.trainer.trainer_plan import TrainerPlan
        from actors.trainer.version_files import memory_of

        begun = time.perf_counter()
        os.environ.update(rank_secrets(settings.trainer))
        async with join_run(address, "trainer") as worker, contextlib.AsyncExitStack() as stack:
            ranks, share = RayRanks(peers, settings.debug.save_debug_train_data), None
            imported = time.perf_counter()
            if settings.engine.takes_turns:
                share = await stack.enter_async_context(DeviceShare(worker, Side.TRAINER, ranks).following())
                await share.want()
                if not await share.take():
                    return (await read_training_state(worker)).version
            taken = time.perf_counter()
            await ranks.start(
                settings, rendezvous_address(await ranks.meeting_host(address.shared, homes, address.secrets))
            )
            built = time.perf_counter()
            seconds = {"imports": imported - begun, "model": built - taken}
            moved = {MOVED: ranks.moved} if ranks.moved else {}
            await worker.join(seconds, rank_environment(settings.trainer) | moved)
            evaluated = settings.evaluation.eval_interval or 0
            plan = TrainerPlan.of(settings, f"{address.folder}/checkpoints", evaluated=evaluated)
            held = memory_of(address.run, address.weights_url, settings.trainer, on_one_host=ranks.on_one_host)
            plan = replace(plan, memory=held)
            try:
                arguments = address, settings, worker, ranks, plan
                async with _sends_weights(worker, settings.trainer.update_weight_transport, held):
                    if settings.run.tinker:  # reads all commands of the log, regardless of the version it starts from
                        return await CommandedTrainer.of_run(*arguments, blobs=BlobStore(address.blob_url)).run()
                    snapshot = await _snapshots(address).newest(worker.log)
                    start_of = partial(training_start, snapshot.state) if snapshot else lambda version: 1
                    return await Trainer.of_run(*arguments, start_of=start_of, share=share).run()
            finally:
                await ranks.close()


def _sends_weights(
    worker: Participant, transport: str, memory: str | None
) -> contextlib.AbstractAsyncContextManager[None]:
    """Return a context in which engines can receive weight versions, if the transport is that.

    memory: folder of versions that are not stored yet.
    """
    if transport != "collective":
        return contextlib.nullcontext()
    from actors.trainer.rank_hosts import own_host
    from actors.trainer.transfer_desk import TransferDesk

    return TransferDesk(worker, own_host().address, memory=memory or "").opened()


class RankActor:
    """A Megatron rank other than rank 0: makes the same calls as rank 0, in the same order."""

    def __init__(self, folder: str, rank: int) -> None:
        setup_logging(f"trainer-rank{rank}", Path(folder) / "logs")
        self._printed = contextlib.ExitStack()  # as long as the actor
        self._printed.enter_context(copy_output_to_log())
        self._number = rank
        self._rank: Backend | None = None

    def host(self, shared: Sequence[SharedPlace], secrets: Mapping[str, str]) -> Home:
        """Return this rank's machine. secrets: variables of URLs. Raises InvalidValue if it does not see a place."""
        from actors.trainer.rank_hosts import own_host

        os.environ.update(secrets)
        require_places(shared)
        return own_host()

    def start(self, trainer: TrainerSettings, *args: Any) -> None:
        """Build this rank and join the process group. args: further arguments of `RankClass`. Raises as `call`."""
        os.environ.update(rank_secrets(trainer))
        from actors.backends import rank_class

        self._rank = self._guarded(partial(rank_class(), trainer, *args))

    def call(self, method: str, *args: object, **kwargs: object) -> None:
        """Make this rank's part of a collective call. method: the name of a method of `Backend`.

        Raises RankLost if its device or a connection fails.
        """
        from actors.backends import call_by_name

        assert self._rank is not None, "the trainer starts the rank first"
        self._guarded(partial(call_by_name, self._rank, method, *args, **kwargs))

    def _guarded(self, call: Callable[[], T]) -> T:
        from actors.step.faults import is_fault, lost

        try:
            return call()
        except RuntimeError as error:
            if is_fault(error):
                raise lost(self._number, error) from None  # Ray need not pickle torch's error
            raise


@contextlib.asynccontextmanager
async def _keeper(address: RunAddress) -> AsyncIterator[TrimLog | None]:
    """Open the function that removes archived events from the run's log; None if all events stay."""
    if address.log_keep_steps is None:
        yield None
        return
    log = await open_log(address)
    try:
        open_archive, queue = partial(ArchiveReader, address.archive_url, address.run), address.incarnation.queue
        keeper = LogKeeper(log, _snapshots(address), open_archive, steps=address.log_keep_steps, queue=queue)
        yield keeper.trim
    finally:
        await log.close()


def _finishing(settings: TrainSettings, worker: Participant, fetch: Fetch) -> StepSamples | None:
    """Return None if the settings name no function that sees a step's samples."""
    functions = StepFunctions(settings.rollout, partial(ArgsView.of_run, settings))
    return StepSamples(functions, worker.log, fetch) if functions.by_setting else None


async def _samples_where(opened: OpenedRun, sql: str) -> list[str]:
    from slime_events.analysis.query import samples_where  # imports DuckDB, which few runs need

    return await samples_where(opened, sql)


def _snapshots(address: RunAddress) -> Snapshots[Snapshot]:
    return Snapshots(Path(address.folder) / "snapshots")

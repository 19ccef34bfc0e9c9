"""The processes of slime's debug flags: they load rollouts from dumps, replace the trainer, or write dumps.

next step's dump -> prompt.submitted -> (the conductor) -> rollout.requested -> rollout.completed + reward.assigned
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TypeVar, cast

from actors.debug.answerer import Answer, Answerer
from actors.trainer.ranks import HeldWeights, Ranks
from actors.trainer.trainer import Trainer
from actors.trainer.trainer_plan import TrainerPlan
from schemas.batches import BatchSealed
from schemas.event import Event
from schemas.ids import LOADED
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutRequested
from schemas.weights import WeightsPublished
from slime_events.analysis.export.loaded import LoadedStep
from slime_events.analysis.export.samples import Samples
from slime_events.analysis.export.writers import DumpWriter
from slime_events.core.checkpoint.vocabulary import vocabulary_of
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.join import join_run
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import RunAddress
from slime_events.core.tokens.trajectory import Fetch
from slime_events.core.training.save_progress import SaveProgress, SaveState
from slime_events.core.training.train_batch import StepResult, TrainBatch
from storage.blobs import BlobStore
from storage.follow import Follower
from storage.log import append_all, once
from storage.payloads import Offload, fetch, offload_async
from storage.weights.files import open_checkpoint
from storage.weights.shards import TensorBytes

T = TypeVar("T")
log = logging.getLogger(__name__)


class Loader(Answerer):
    """Submits prompts and rollouts from dumps to a run that has no engines.

    load: reads a step's dump; the last dump is cached. steps: number of steps of the run.
    """

    def __init__(self, worker: Participant, load: Callable[[int], LoadedStep], offload: Offload, *, steps: int) -> None:
        super().__init__(worker, offload)
        self._steps = steps
        self._load = lru_cache(maxsize=1)(load)
        self._groups: dict[str, tuple[int, int]] = {}
        self._next_step, self._submitted = -1, 0

    def observe(self, event: Event) -> None:
        """Follow the steps, and remember which dump and row each of its groups comes from."""
        if isinstance(event, WeightsPublished):
            self._next_step = max(self._next_step, event.version)
        elif isinstance(event, BatchSealed):
            self._next_step = max(self._next_step, event.step + 1)
        elif isinstance(event, PromptSubmitted) and event.dataset == LOADED:
            self._groups[event.group] = (event.source.epoch, event.source.row)
            self._submitted = max(self._submitted, event.source.epoch + 1)

    async def submit(self) -> None:
        """Submit the prompts of the next step after all earlier steps are sealed."""
        step = self._next_step
        if step < 0 or step >= self._steps or step < self._submitted:
            return
        loaded = await asyncio.to_thread(self._load, step)
        await append_all(self.worker.log, [once(await self.enclosed(prompt)) for prompt in loaded.prompts()])
        self._submitted = step + 1

    async def answers(self, request: RolloutRequested) -> Sequence[Answer]:
        """Return the rollout and rewards of the dump."""
        step, place = self._groups[request.group]
        loaded = await asyncio.to_thread(self._load, step)
        return loaded.answers(request, place, self.worker.id)


async def dump_rollouts(worker: Participant, fetch: Fetch, template: str) -> list[str]:
    """Write a rollout dump for each sealed batch and each evaluation until the run is over; return the files written.

    It reads the log from the beginning at each start and writes the same files again, so that a crash loses nothing.
    template: path of a file, with {rollout_id}. Raises StoreUnavailable, NoSpace.
    """
    writer, dumped, over = DumpWriter(template), Samples(worker.log.run, fetch), False
    async with Follower(worker.log) as follower:
        while not (over and follower.caught_up):
            for recorded in await follower.next(wait_s=1.0):
                event = recorded.envelope.event
                over = worker.is_over(over, event)
                if samples := dumped.apply(event, recorded.position):
                    await asyncio.to_thread(writer.write, samples)
    return writer.files


DIGEST = hashlib.sha256(b"no optimizer").hexdigest()


class UntrainedRanks(HeldWeights, Ranks):
    """Replaces Megatron's ranks: the weights stay those of the folder `hf_checkpoint`."""

    def __init__(self, hf_checkpoint: str) -> None:
        self._folder = hf_checkpoint

    async def everywhere(self, method: Callable[..., T], *args: object, **kwargs: object) -> T:
        """Do nothing: the weights never change, so that there is nothing to save, load or reset."""
        return cast("T", None)  # the methods that have a result are replaced below

    async def finish_checkpoint(self, *, wait: bool) -> SaveProgress:
        return SaveProgress(SaveState.SAVED)

    async def train(self, batch: TrainBatch) -> StepResult:
        """Return the number of samples and their mean reward as metrics."""
        rewards = [sample.raw_reward for sample in batch.samples]
        metrics = {"samples": float(len(rewards))}
        if rewards:
            metrics["reward"] = sum(rewards) / len(rewards)
        return StepResult(metrics, DIGEST)

    async def export_weights(self) -> list[TensorBytes]:
        tensors = await asyncio.to_thread(open_checkpoint, self._folder)
        return [(name, tensor.dtype, tensor.shape, tensor.data) for name, tensor in tensors.items()]

    async def optimizer_digest(self) -> str:
        return DIGEST

    async def critic_digest(self) -> str:
        return ""


class LoaderActor:
    """Replaces engines and graders."""

    async def run(self, address: RunAddress, settings: TrainSettings) -> None:
        """Answer requests from the dumps until the end of the run."""
        rollout = settings.rollout
        async with join_run(address, "loader") as worker:
            load = partial(
                LoadedStep.load,
                settings.debug.load_debug_rollout_data or "",
                groups=rollout.rollout_batch_size,
                samples=rollout.n_samples_per_prompt,
                reward_key=settings.reward.reward_key,
                part=settings.debug.load_debug_rollout_data_subsample,
                vocabulary=vocabulary_of(settings.engine.hf_checkpoint),
            )
            offload = partial(offload_async, blobs=BlobStore(address.blob_url))
            await worker.join({})
            await Loader(worker, load, offload, steps=rollout.num_rollout or 0).run()


class UntrainedActor:
    """Replaces the trainer and its ranks."""

    async def run(self, address: RunAddress, settings: TrainSettings) -> int:
        """Commit every batch with unchanged weights; return the last version."""
        async with join_run(address, "trainer") as worker:
            await worker.join({})
            steps, every = settings.rollout.num_rollout or 0, settings.trainer.update_weights_interval
            plan = TrainerPlan(steps, f"{address.folder}/checkpoints", every)
            ranks = UntrainedRanks(settings.trainer.hf_checkpoint)
            return await Trainer.of_run(address, settings, worker, ranks, plan).run()


class DumperActor:
    """Writes rollout dumps; the run's other processes are unchanged."""

    async def run(self, address: RunAddress, settings: TrainSettings) -> None:
        """Write dumps until the end of the run."""
        async with join_run(address, "dumper") as worker:
            await worker.join({})
            read = partial(fetch, blobs=BlobStore(address.blob_url))
            await dump_rollouts(worker, read, settings.debug.save_debug_rollout_data or "")

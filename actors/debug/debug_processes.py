"""The Ray actors of slime's debug flags: rollouts out of dumps, no trainer, dumps of what is made."""

from __future__ import annotations

from functools import partial

from actors.debug.dumper import Dumper
from actors.debug.loader import Loader
from actors.trainer.trainer import Trainer, TrainerPlan
from actors.trainer.untrained_ranks import UntrainedRanks
from slime_events.analysis.export.loaded import LoadedStep
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.join import join_run
from slime_events.core.run.run_address import RunAddress
from slime_events.loop.training.pending_batches import OpenBatches
from storage.blobs import BlobStore
from storage.payloads import fetch, offload_async
from storage.weights.store import WeightStore


class LoaderActor:
    """In place of engines and graders."""

    async def run(self, address: RunAddress, settings: TrainSettings) -> None:
        """Play the dumps to the end of the run."""
        rollout = settings.rollout
        async with join_run(address, "loader") as worker:
            load = partial(
                LoadedStep.load,
                settings.debug.load_debug_rollout_data or "",
                groups=rollout.rollout_batch_size,
                samples=rollout.n_samples_per_prompt,
                reward_key=settings.reward.reward_key,
                part=settings.debug.load_debug_rollout_data_subsample,
            )
            offload = partial(offload_async, blobs=BlobStore(address.blob_url))
            await worker.join({})
            await Loader(worker, load, offload, steps=rollout.num_rollout or 0).run()


class UntrainedActor:
    """In place of the trainer and its ranks."""

    async def run(self, address: RunAddress, settings: TrainSettings) -> int:
        """Commit every batch with the weights as they are; the version reached."""
        async with join_run(address, "trainer") as worker:
            await worker.join({})
            checkpoint = settings.trainer.hf_checkpoint
            return await Trainer(
                worker,
                UntrainedRanks(checkpoint),
                WeightStore(address.weights_url, base=checkpoint),
                OpenBatches(
                    partial(fetch, blobs=BlobStore(address.blob_url)),
                    temperature=settings.rollout.rollout_temperature,
                ),
                TrainerPlan(
                    settings.rollout.num_rollout or 0,
                    f"{address.folder}/checkpoints",
                    settings.trainer.update_weights_interval,
                ),
            ).run()


class DumperActor:
    """Beside all others."""

    async def run(self, address: RunAddress, settings: TrainSettings) -> None:
        """Write dumps to the end of the run."""
        async with join_run(address, "dumper") as worker:
            await worker.join({})
            read = partial(fetch, blobs=BlobStore(address.blob_url))
            await Dumper(worker, read, settings.debug.save_debug_rollout_data or "").run()

"""`Ranks`: calls all ranks of a trainer together, in any kind of process.

`collective` makes a call in which every rank takes part.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from actors.backends import Backend
from schemas.errors import RankLost
from slime_events.core.training.datums import PassResult, TrainPass
from slime_events.core.training.save_progress import SaveProgress
from slime_events.core.training.train_batch import StepResult, TrainBatch
from slime_events.loop.training.difference import Distance, distance
from storage.cancellation import end_all
from storage.nats.ports import HOST, free_port
from storage.weights.manifest import WeightManifest
from storage.weights.shards import TensorBytes
from storage.weights.store import WeightStore
from storage.weights.stored_version import digest_of, trained_tensors

T = TypeVar("T")
P = ParamSpec("P")
BLAME_S = 5.0
"""Seconds after the first failure in which the other ranks can still answer; then all ranks are given up."""


class Ranks:
    """Base class: each call goes to every rank, and the result is rank 0's. Subclasses implement `everywhere`."""

    async def everywhere(self, method: Callable[Concatenate[Backend, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return rank 0's result when all ranks are done. An error names the lost rank, not ranks that wait for it.

        method: a method of `Backend`, such as `Backend.reset`. Ranks in other processes are called by its name.
        """
        raise NotImplementedError

    async def train(self, batch: TrainBatch) -> StepResult:
        """Train a rollout step with all its optimizer steps."""
        return await self.everywhere(Backend.train, batch)

    async def run_pass(self, request: TrainPass, *, backward: bool) -> PassResult:
        """Run a client's pass. backward: add its gradients to the next step."""
        return await self.everywhere(Backend.run_pass, request, backward)

    async def export_weights(self) -> list[TensorBytes]:
        """Return all tensors under Hugging Face names, in this process. The next call may change them."""
        return await self.everywhere(Backend.export_bytes)

    async def weights_digest(self) -> str:
        """Return the sha256 (hex) of the weights, equal to that of a stored version."""
        return await self.everywhere(Backend.weights_digest)

    async def write_weights(self, store: WeightStore, version: int, parent: int | None) -> WeightManifest:
        """Store the weights as a version; each rank writes its share. Raises as `WeightStore.write`."""
        plan = await asyncio.to_thread(store.plan, version, parent)
        with store.draft(version) as draft:
            shards = await self.everywhere(Backend.write_shards, str(draft), store.max_shard_bytes, store.durable, plan)
            upload = await asyncio.to_thread(store.upload, version, shards)
            uploaded = await self.everywhere(Backend.upload_shards, str(draft), upload) if upload else {}
            return await asyncio.to_thread(
                store.complete, draft, version, shards, parent, plan=plan, upload=upload, uploaded=uploaded
            )

    async def weights_distance(self, folder: str) -> Distance:
        """Measure the weights against a Hugging Face folder. Raises CheckpointMismatch if it has different tensors."""
        return await self.everywhere(Backend.weights_distance, folder)

    async def show_weights(self, folder: str) -> dict[str, str]:
        """Call each rank's user function with a weight version's folder; return digests of sources by setting."""
        return await self.everywhere(Backend.show_weights, folder)

    async def optimizer_digest(self) -> str:
        """Return the sha256 (hex) of the state of all ranks' optimizers, as in a step's result."""
        return await self.everywhere(Backend.optimizer_digest)

    async def critic_digest(self) -> str:
        """Return the sha256 (hex) of all ranks' critics, weights and optimizers; empty without a critic."""
        return await self.everywhere(Backend.critic_digest)

    async def save_checkpoint(self, folder: str) -> None:
        """Save model, optimizer and scheduler of all ranks, and those of a critic."""
        await self.everywhere(Backend.save_checkpoint, folder)

    async def begin_checkpoint(self, folder: str) -> None:
        """Copy the state for a checkpoint, and write it while the ranks train. One at a time."""
        await self.everywhere(Backend.begin_checkpoint, folder)

    async def finish_checkpoint(self, *, wait: bool) -> SaveProgress:
        """Return the progress of the checkpoint that is being written. wait: wait until it is done."""
        return await self.everywhere(Backend.finish_checkpoint, wait)

    async def load_checkpoint(self, folder: str) -> None:
        """Continue from a checkpoint. Raises CheckpointMismatch if it is incomplete or does not fit; the ranks must
        then be reset or load another checkpoint."""
        await self.everywhere(Backend.load_checkpoint, folder)

    async def load_weights(self, folder: str) -> None:
        """Load the weights of a Hugging Face folder. Moments, step count and schedule stay; main weights follow the new
        weights. Raises CheckpointMismatch if the folder does not fit; the ranks are then unusable."""
        await self.everywhere(Backend.load_weights, folder)

    async def advance_schedule(self, optimizer_steps: int) -> None:
        """Advance the learning rate schedule by a number of optimizer steps."""
        await self.everywhere(Backend.advance_schedule, optimizer_steps)

    async def reset(self) -> None:
        """Return to the state in which the run started: initial weights, new optimizer, new schedule."""
        await self.everywhere(Backend.reset)

    async def rest(self) -> None:
        """Give the memory of all ranks' devices back. The state stays in host memory."""
        await self.everywhere(Backend.rest)

    async def wake(self) -> None:
        """Bring the state of all ranks back to their devices, bit for bit."""
        await self.everywhere(Backend.wake)


class HeldWeights:
    """A mixin for ranks whose weights are small and in this process, as `export_weights` returns them."""

    async def export_weights(self) -> list[TensorBytes]:
        raise NotImplementedError

    async def weights_digest(self) -> str:
        return digest_of(await self.export_weights())

    async def write_weights(self, store: WeightStore, version: int, parent: int | None) -> WeightManifest:
        return await asyncio.to_thread(store.write, version, await self.export_weights(), parent)

    async def weights_distance(self, folder: str) -> Distance:
        return distance(trained_tensors(folder), await self.export_weights())


async def train(ranks: Ranks, batch: TrainBatch) -> StepResult:
    """Train a rollout step. An empty batch, which only a learner has, changes nothing."""
    if not batch.samples and batch.commanded is None:
        return StepResult({"samples": 0.0}, await ranks.optimizer_digest(), critic_digest=await ranks.critic_digest())
    return await ranks.train(batch)


async def collective(parts: Sequence[Awaitable[T]], give_up: Callable[[], None]) -> T:
    """Await all `parts`, which are in the order of ranks, and return rank 0's result.

    Raises the error of a lost rank if there is one, else the first error. give_up: called if ranks still wait after an
    error, since they wait for a lost rank.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        first, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if waiting:
            _, waiting = await asyncio.wait(waiting, timeout=BLAME_S)
        if waiting:
            give_up()
        answered = sorted((task for task in tasks if task not in waiting), key=lambda task: task not in first)
        errors = [error for task in answered if (error := task.exception()) is not None]
        if errors:
            raise min(errors, key=lambda error: not isinstance(error, RankLost))
        return tasks[0].result()
    finally:
        await end_all(*tasks)


def rendezvous_address(host: str = HOST) -> str:
    """Return the `host:port` at which the ranks of a trainer meet: a free port of `host`, an address of rank 0."""
    return f"{host}:{free_port(host)}"

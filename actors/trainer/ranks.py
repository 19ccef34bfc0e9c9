"""`Ranks`: all ranks of a trainer as one, wherever they are.

`collective` is one call that every rank takes part in.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from schemas.errors import RankLost
from slime_events.analysis.retrain.difference import Distance, distance
from slime_events.core.datums import PassResult, TrainPass
from slime_events.core.save_progress import SaveProgress
from slime_events.core.train_batch import StepResult, TrainBatch
from storage.cancellation import end_all
from storage.nats.ports import HOST, free_port
from storage.weights.files import open_checkpoint
from storage.weights.shards import TensorBytes
from storage.weights.store import WeightManifest, WeightStore, digest_of

T = TypeVar("T")
BLAME_S = 5.0
"""Seconds that the other ranks have to answer, once one has failed; then none of them is of use any more."""


class Ranks:
    """Calls go to every rank, answers are rank 0's. How they get there is `everywhere`, of each kind of ranks."""

    async def everywhere(self, method: str, *args: Any) -> Any:
        """Rank 0's answer once all have theirs. A lost rank is named, not the ranks that waited for it."""
        raise NotImplementedError

    async def train(self, batch: TrainBatch) -> StepResult:
        """One rollout step: all its optimizer steps."""
        result: StepResult = await self.everywhere("train", batch)
        return result

    async def run_pass(self, asked: TrainPass, *, backward: bool) -> PassResult:
        """A pass that a client asks for; backward: its gradients are part of the next step."""
        result: PassResult = await self.everywhere("run_pass", asked, backward)
        return result

    async def export_weights(self) -> list[TensorBytes]:
        """HF-named tensors, all of them in this process. They may change with the next call."""
        tensors: list[TensorBytes] = await self.everywhere("export_bytes")
        return tensors

    async def weights_digest(self) -> str:
        """sha256 hex of the weights, as a version of them has it."""
        return str(await self.everywhere("weights_digest"))

    async def write_weights(self, store: WeightStore, version: int, parent: int | None) -> WeightManifest:
        """Store the weights as a version, each rank its share. Raises as `WeightStore.write`."""
        with store.draft(version) as draft:
            shards = await self.everywhere("write_shards", str(draft), store.max_shard_bytes, store.durable)
            return await asyncio.to_thread(store.complete, draft, version, shards, parent)

    async def weights_distance(self, folder: str) -> Distance:
        """Of the weights from those of a Hugging Face folder. Raises CheckpointMismatch where it has other tensors."""
        apart: Distance = await self.everywhere("weights_distance", folder)
        return apart

    async def show_weights(self, folder: str) -> dict[str, str]:
        """Show a weight version's files to the user's function of each rank; digests of sources by setting."""
        digests: dict[str, str] = await self.everywhere("show_weights", folder)
        return digests

    async def optimizer_digest(self) -> str:
        """sha256 hex over the state of all ranks' optimizers, as in a step's result."""
        return str(await self.everywhere("optimizer_digest"))

    async def critic_digest(self) -> str:
        """The same over all ranks' critics, weights and optimizers; empty without a critic."""
        return str(await self.everywhere("critic_digest"))

    async def save_checkpoint(self, folder: str) -> None:
        """Model, optimizer and scheduler of all ranks, and those of a critic."""
        await self.everywhere("save_checkpoint", folder)

    async def begin_checkpoint(self, folder: str) -> None:
        """The same, written while the ranks train on: what they have now is copied. One at a time."""
        await self.everywhere("begin_checkpoint", folder)

    async def finish_checkpoint(self, *, wait: bool) -> SaveProgress:
        """How far that one is. wait: for its end."""
        progress: SaveProgress = await self.everywhere("finish_checkpoint", wait)
        return progress

    async def load_checkpoint(self, folder: str) -> None:
        """Go on from such a folder. Raises CheckpointMismatch where it is incomplete or does not fit; the ranks are
        then to be reset or to load another."""
        await self.everywhere("load_checkpoint", folder)

    async def load_weights(self, folder: str) -> None:
        """Take the weights of a Hugging Face folder. Moments, step count and schedule stay, main weights follow. Raises
        CheckpointMismatch where it does not fit; the ranks are then not to be used."""
        await self.everywhere("load_weights", folder)

    async def advance_schedule(self, optimizer_steps: int) -> None:
        """Let the learning rate be what it is so many optimizer steps later."""
        await self.everywhere("advance_schedule", optimizer_steps)

    async def reset(self) -> None:
        """Back to what the run started from: weights, new optimizer, new schedule."""
        await self.everywhere("reset")


class HeldWeights:
    """A part of ranks whose weights are few and in this process, as `export_weights` gives them."""

    async def export_weights(self) -> list[TensorBytes]:
        raise NotImplementedError

    async def weights_digest(self) -> str:
        return digest_of(await self.export_weights())

    async def write_weights(self, store: WeightStore, version: int, parent: int | None) -> WeightManifest:
        return await asyncio.to_thread(store.write, version, await self.export_weights(), parent)

    async def weights_distance(self, folder: str) -> Distance:
        return distance(open_checkpoint(folder), await self.export_weights())


async def train(ranks: Ranks, batch: TrainBatch) -> StepResult:
    """One rollout step. An empty batch, which only a learner has, leaves everything as it is."""
    if not batch.samples and batch.commanded is None:
        return StepResult({"samples": 0.0}, await ranks.optimizer_digest(), critic_digest=await ranks.critic_digest())
    return await ranks.train(batch)


async def collective(parts: Sequence[Awaitable[T]], give_up: Callable[[], None]) -> T:
    """Rank 0's answer once all have theirs, `parts` in the order of ranks.

    Raises the error of a lost rank if there is one, else the first error. give_up: called when some still wait after an
    error; they wait for a rank that will not come.
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


def rendezvous_address() -> str:
    """`host:port` of rank 0, on loopback, where the ranks of one trainer meet; the port is free now."""
    return f"{HOST}:{free_port()}"

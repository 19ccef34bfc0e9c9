"""`LocalRanks`: all trainer ranks as one, each a process of this machine: for work on a log, without Ray and a run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from actors.trainer.collective import collective
from actors.trainer.rank_process import RankProcess
from actors.trainer.rendezvous import meeting_address
from slime_events.core.config.settings import TrainSettings
from slime_events.core.train_batch import TrainBatch
from storage.weights.store import TensorBytes

if TYPE_CHECKING:
    from actors.trainer.trainer_ranks import Result


class LocalRanks:
    """Keeps `Ranks`. Every call goes to every rank, since all of them are collective; answers are rank 0's."""

    def __init__(self, processes: Sequence[RankProcess]) -> None:
        self._processes = processes

    async def train(self, batch: TrainBatch) -> Result:
        """One rollout step on all ranks."""
        result: Result = await self.everywhere("train", batch)
        return result

    async def export_weights(self) -> list[TensorBytes]:
        """HF-named tensors, copied: they stay as they are when training goes on."""
        tensors: list[TensorBytes] = await self.everywhere("export_weights")
        return tensors

    async def optimizer_digest(self) -> str:
        """Of all ranks' optimizer state."""
        return str(await self.everywhere("optimizer_digest"))

    async def save_checkpoint(self, folder: str) -> None:
        """Model, optimizer and scheduler of all ranks."""
        await self.everywhere("save_checkpoint", folder)

    async def load_checkpoint(self, folder: str) -> None:
        """Model, optimizer and scheduler of all ranks. Raises CheckpointMismatch."""
        await self.everywhere("load_checkpoint", folder)

    async def reset(self) -> None:
        """Build all ranks anew, as they were at the start."""
        await self.everywhere("reset")

    async def everywhere(self, method: str, *args: Any) -> Any:
        """Rank 0's answer once all have theirs. A lost rank is named, not the one that waited for it in vain."""
        return await self.each(method, [args] * len(self._processes))

    async def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> Any:
        """The same with other arguments for each rank."""
        calls = (process.call(method, *args) for process, args in zip(self._processes, arguments, strict=True))
        return await collective(list(calls), give_up=self._kill)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


@contextlib.asynccontextmanager
async def local_ranks(settings: TrainSettings) -> AsyncIterator[LocalRanks]:
    """Ranks with the weights that a run of these settings begins with, in as many processes as its trainer has.

    They train as the run's own do: the same code, threads and environment give the same digests on the same hardware
    and versions. Raises CheckpointMismatch, ConfigError, TrainerError as `TrainerRank`.
    """
    trainer, algorithm, world = settings.trainer, settings.algorithm, settings.trainer.world_size
    processes = [RankProcess(rank) for rank in range(world)]
    try:
        ranks = LocalRanks(processes)
        await ranks.everywhere("ready")  # they import for seconds, in which an address chosen before could be taken
        master = meeting_address()
        await ranks.each("start", [(trainer, algorithm, rank, world, master) for rank in range(world)])
        yield ranks
    finally:
        await asyncio.gather(*(process.close() for process in processes))

"""`LocalRanks`: trainer ranks that are processes of this machine: for work on a log, without Ray and a run."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from actors.trainer.rank_process import RankProcess
from actors.trainer.ranks import Ranks, collective, rendezvous_address
from slime_events.core.config.settings import TrainSettings


class LocalRanks(Ranks):
    """One for each process, in the order of ranks."""

    def __init__(self, processes: Sequence[RankProcess]) -> None:
        self._processes = processes

    async def everywhere(self, method: str, *args: Any) -> Any:
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
        master = rendezvous_address()
        await ranks.each("start", [(trainer, algorithm, rank, world, master) for rank in range(world)])
        yield ranks
    finally:
        await asyncio.gather(*(process.close() for process in processes))

"""`RanksOfMegatron`: all trainer ranks as one. Rank 0 lives in this process, the others are its Ray peers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError

from actors.megatron.digest import tensor_bytes
from actors.megatron.rank import TrainerRank
from actors.trainer.collective import collective
from actors.trainer.trainer_ranks import StepResult
from schemas.errors import RankLost
from slime_events.analysis.export.dump import train_dump_path
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.train_batch import TrainBatch
from storage.weights.store import TensorBytes

T = TypeVar("T")
CLOSE_S = 10.0
"""Seconds that rank 0 has to leave its group; its process ends without that."""


class RanksOfMegatron:
    """Every call goes to every rank, since all of them are collective; answers are rank 0's.

    Rank 0 is used from one thread of its own: the event loop stays free, and what torch keeps by thread stays there.
    dumps: of each step that is trained, a path with {rollout_id}.
    """

    def __init__(self, peers: Sequence[Any], dumps: str | None = None) -> None:
        self._peers, self._dumps = peers, dumps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="megatron")
        self._rank: TrainerRank | None = None

    async def start(self, settings: TrainerSettings, algorithm: AlgorithmSettings, master: str) -> None:
        """Build rank 0 and all peers; they meet at `master`."""
        world = len(self._peers) + 1
        others = [
            peer.start.remote(settings, algorithm, rank, world, master) for rank, peer in enumerate(self._peers, 1)
        ]
        self._rank = await self._everywhere(lambda: TrainerRank(settings, algorithm, 0, world, master), others)

    async def train(self, batch: TrainBatch) -> StepResult:
        """One rollout step on all ranks."""
        rank, dump = self._own(), train_dump_path(self._dumps, batch.step) if self._dumps else None
        others = [peer.train.remote(batch, dump) for peer in self._peers]
        return await self._everywhere(lambda: rank.train(batch, dump), others)

    async def export_weights(self) -> list[TensorBytes]:
        """HF-named tensors as bytes."""
        rank = self._own()
        others = [peer.export_weights.remote() for peer in self._peers]
        return await self._everywhere(
            lambda: [tensor_bytes(name, tensor) for name, tensor in rank.export_weights()], others
        )

    async def save_checkpoint(self, folder: str) -> None:
        """Model, optimizer and scheduler of all ranks."""
        rank = self._own()
        others = [peer.save_checkpoint.remote(folder) for peer in self._peers]
        await self._everywhere(lambda: rank.save_checkpoint(folder), others)

    async def load_checkpoint(self, folder: str) -> None:
        """Model, optimizer and scheduler of all ranks. Raises CheckpointMismatch."""
        rank = self._own()
        others = [peer.load_checkpoint.remote(folder) for peer in self._peers]
        await self._everywhere(lambda: rank.load_checkpoint(folder), others)

    async def optimizer_digest(self) -> str:
        """Of all ranks' optimizer state."""
        rank = self._own()
        others = [peer.optimizer_digest.remote() for peer in self._peers]
        return await self._everywhere(rank.optimizer_digest, others)

    async def reset(self) -> None:
        """Build all ranks anew, as they were at the start."""
        rank = self._own()
        others = [peer.reset.remote() for peer in self._peers]
        await self._everywhere(rank.reset, others)

    async def close(self) -> None:
        """Leave the process group, unless rank 0 is still in a call that waits for a rank in vain."""
        if self._rank is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._here(self._rank.close)
        self._thread.shutdown(wait=False)

    def _own(self) -> TrainerRank:
        if self._rank is None:
            raise RuntimeError("start the ranks first")
        return self._rank

    async def _everywhere(self, call: Callable[[], T], others: Sequence[Any]) -> T:
        """Rank 0's answer once all have theirs. A lost rank is named, not the one that waited for it in vain."""
        peers = [_of_peer(rank, other) for rank, other in enumerate(others, 1)]
        return await collective([self._here(call), *peers], give_up=self._kill_peers)

    def _kill_peers(self) -> None:
        for peer in self._peers:
            ray.kill(peer)

    async def _here(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


async def _of_peer(rank: int, answer: Any) -> Any:
    try:
        return await answer
    except RayActorError as error:
        raise RankLost(f"rank {rank} is gone (killed, out of memory, or crashed)") from error

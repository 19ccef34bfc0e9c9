"""`RayRanks`: the ranks of a run's trainer. Rank 0 lives in this process, the others are its Ray peers."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import ray
from ray.exceptions import RayActorError

from actors.megatron.faults import is_fault, lost
from actors.megatron.heartbeat import beats
from actors.megatron.rank import TrainerRank
from actors.trainer.ranks import Ranks, collective
from schemas.errors import RankLost
from slime_events.analysis.export.dump import train_dump_path
from slime_events.core.config.settings import TrainSettings
from slime_events.core.datums import Beginning
from slime_events.core.train_batch import StepResult, TrainBatch
from slime_events.plugins.trainer_points import rank_args
from storage.cancellation import end_all

T = TypeVar("T")
CLOSE_S = 10.0
"""Seconds that rank 0 has to leave its group; its process ends without that."""
LOOKS = 8
"""In the time after which a rank counts as hanging."""
WORK = ("train", "run_pass")
"""Calls of which a rank beats (`actors/megatron/heartbeat.py`)."""


class RayRanks(Ranks):
    """Rank 0 is used from one thread of its own: the event loop stays free, and what torch keeps by thread stays there.

    dumps: of each step that is trained, a path with {rollout_id}.
    """

    def __init__(self, peers: Sequence[Any], dumps: str | None = None) -> None:
        self._peers, self._dumps = peers, dumps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="megatron")
        self._rank: TrainerRank | None = None
        self._hang_s: float | None = None

    async def start(self, settings: TrainSettings, master: str) -> None:
        """Build rank 0 and all peers; they meet at `master`."""
        self._hang_s = settings.trainer.hang_seconds
        world, given, shown = len(self._peers) + 1, (settings.trainer, settings.algorithm), rank_args(settings)
        others = [peer.start.remote(*given, rank, world, master, shown) for rank, peer in enumerate(self._peers, 1)]
        self._rank = await self._together(partial(TrainerRank, *given, 0, world, master, shown), others)

    async def train(self, batch: TrainBatch) -> StepResult:
        dump = train_dump_path(self._dumps, batch.step) if self._dumps else None
        # One copy in Ray's store for all peers, not one for each.
        stored = await asyncio.to_thread(ray.put, batch) if self._peers else None
        assert self._rank is not None
        own = partial(self._rank.train, batch, dump)
        begins = batch.commanded is not None and isinstance(batch.commanded.update, Beginning)
        method = "begin" if begins else "train"  # the one loads a checkpoint, at once
        return await self._at_work(method, own, [peer.call.remote("train", stored, dump) for peer in self._peers])

    async def everywhere(self, method: str, *args: Any) -> Any:
        own = partial(getattr(self._rank, method), *args)
        return await self._at_work(method, own, [peer.call.remote(method, *args) for peer in self._peers])

    async def close(self) -> None:
        """Leave the process group, unless rank 0 is still in a call that waits for a lost rank."""
        if self._rank is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._here(self._rank.close)
        self._thread.shutdown(wait=False)

    async def _at_work(self, method: str, call: Callable[[], T], others: Sequence[Any]) -> T:
        """`_together`, while rank 0 beats. Raises RankLost where it does not any more: it hangs, or waits for a rank
        that does.
        """
        together = asyncio.ensure_future(self._together(call, others))
        hang_s = (self._hang_s or None) if method in WORK else None
        try:
            known, since = beats(), time.monotonic()
            while not (await asyncio.wait([together], timeout=hang_s and hang_s / LOOKS))[0]:
                if beats() != known:
                    known, since = beats(), time.monotonic()
                elif hang_s and time.monotonic() - since > hang_s:
                    self._kill_peers()
                    raise RankLost(
                        f"rank 0 did nothing for {hang_s:g} s in `{method}`: it hangs, or waits for a rank that hangs "
                        "(--hang-seconds)"
                    )
            return together.result()
        finally:
            await end_all(together)

    async def _together(self, call: Callable[[], T], others: Sequence[Any]) -> T:
        peers = [_of_peer(rank, other) for rank, other in enumerate(others, 1)]
        return await collective([self._here(call), *peers], give_up=self._kill_peers)

    def _kill_peers(self) -> None:
        for peer in self._peers:
            ray.kill(peer)

    async def _here(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except RuntimeError as error:
            if is_fault(error):
                raise lost(0, error) from error
            raise


async def _of_peer(rank: int, answer: Any) -> Any:
    try:
        return await answer
    except RayActorError as error:
        raise RankLost(f"rank {rank} is gone (killed, out of memory, or crashed)") from error

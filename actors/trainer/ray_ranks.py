"""`RayRanks`: the ranks of a live run's trainer. Rank 0 is in this process; the other ranks are Ray actors."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray
from ray.exceptions import RayActorError

from actors.backends import Backend, call_by_name, rank_class
from actors.step.faults import is_fault, lost
from actors.step.heartbeat import beats
from actors.trainer.rank_hosts import moved_ranks, own_host
from actors.trainer.ranks import Ranks, collective
from schemas.errors import RankLost
from slime_events.analysis.export.dump import train_dump_path
from slime_events.core.config.settings import TrainSettings
from slime_events.core.planning.homes import Home
from slime_events.core.run.network import meeting_host
from slime_events.core.run.shared_places import SharedPlace, require_places
from slime_events.core.training.datums import Beginning
from slime_events.core.training.train_batch import StepResult, TrainBatch
from slime_events.plugins.trainer_points import rank_args
from storage.cancellation import end_all

T = TypeVar("T")
P = ParamSpec("P")
CLOSE_S = 10.0
"""Seconds to wait for rank 0 to leave its group; its process ends in any case."""
START_S = 120.0
"""Seconds in which Ray must start all ranks on their machines, one of which may have been lost meanwhile."""
LOOKS = 8
"""Checks for a heartbeat within the time after which a rank counts as hanging."""
WORK = (Backend.train, Backend.run_pass)
"""Calls during which a rank has a heartbeat (`actors/step/heartbeat.py`)."""


class RayRanks(Ranks):
    """Calls rank 0 in one thread, which keeps the event loop free and torch's thread-local state in place.

    peers: Ray handles of the other ranks. dumps: path, with {rollout_id}, of a dump of each step.
    """

    def __init__(self, peers: Sequence[Any], dumps: str | None = None) -> None:
        self._peers, self._dumps = peers, dumps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="megatron")
        self._rank_class = (
            rank_class()
        )  # here, since it takes seconds in which another process could take a chosen port
        self._rank: Backend | None = None
        self._hang_s: float | None = None
        self.moved = ""
        """Ranks whose planned machine is lost, set by `meeting_host`."""
        self.on_one_host = False
        """Whether all ranks are on this machine, set by `meeting_host`."""

    async def meeting_host(
        self, shared: Sequence[SharedPlace] = (), homes: Sequence[Home] = (), secrets: Mapping[str, str] = {}
    ) -> str:  # `secrets` is only read
        """Return the address at which the ranks meet: of rank 0's machine, or loopback if all are there.

        shared: what each machine must see. homes: planned machine of each rank; empty: any. secrets:
        variables of URLs, which this process has. Raises RankLost, also if a
        rank is on another machine although its own is alive, and InvalidValue if a machine does not see a place.
        """
        await asyncio.to_thread(require_places, shared)
        calls = [
            _of_peer(rank, peer.host.remote(tuple(shared), dict(secrets))) for rank, peer in enumerate(self._peers, 1)
        ]
        try:
            async with asyncio.timeout(START_S if homes else None):
                hosts = [own_host(), *await asyncio.gather(*calls)]
        except TimeoutError as error:
            raise RankLost(f"a rank has not started on its machine within {START_S:.0f} s: see `ray status`") from error
        self.on_one_host = len(set(hosts)) == 1
        if homes:
            self.moved = moved_ranks(homes, hosts, await asyncio.to_thread(ray.nodes))
        return meeting_host([host.address for host in hosts])

    async def start(self, settings: TrainSettings, master: str) -> None:
        """Build rank 0 and all peers, which meet at `master`."""
        self._hang_s = settings.trainer.hang_seconds
        world, own, shown = len(self._peers) + 1, (settings.trainer, settings.algorithm), rank_args(settings)
        others = [peer.start.remote(*own, rank, world, master, shown) for rank, peer in enumerate(self._peers, 1)]
        self._rank = await self._together(partial(self._rank_class, *own, 0, world, master, shown), others)

    async def train(self, batch: TrainBatch) -> StepResult:
        dump = train_dump_path(self._dumps, batch.step) if self._dumps else None
        # All peers share a copy in Ray's store.
        stored = await asyncio.to_thread(ray.put, batch) if self._peers else None
        begins = batch.commanded is not None and isinstance(batch.commanded.update, Beginning)
        peers = [peer.call.remote(Backend.train.__name__, stored, dump) for peer in self._peers]
        # A beginning loads a checkpoint and has no heartbeat.
        return await self._at_work("train", partial(self._own.train, batch, dump), peers, has_beats=not begins)

    async def everywhere(self, method: Callable[Concatenate[Backend, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        name = method.__name__
        own: Callable[[], T] = partial(call_by_name, self._own, name, *args, **kwargs)
        peers = [peer.call.remote(name, *args, **kwargs) for peer in self._peers]
        return await self._at_work(name, own, peers, has_beats=method in WORK)

    @property
    def _own(self) -> Backend:
        assert self._rank is not None, "the ranks are started first"
        return self._rank

    async def close(self) -> None:
        """Leave the process group, unless rank 0 still waits for a lost rank."""
        if self._rank is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._here(self._rank.close)
        self._thread.shutdown(wait=False)

    async def _at_work(self, name: str, call: Callable[[], T], others: Sequence[Any], *, has_beats: bool) -> T:
        """Run `_together`. Raises RankLost if rank 0's heartbeat stops: it hangs, or waits for a rank that hangs."""
        together = asyncio.ensure_future(self._together(call, others))
        hang_s = (self._hang_s or None) if has_beats else None
        try:
            count, since = beats(), time.monotonic()
            while not (await asyncio.wait([together], timeout=hang_s and hang_s / LOOKS))[0]:
                if beats() != count:
                    count, since = beats(), time.monotonic()
                elif hang_s and time.monotonic() - since > hang_s:
                    self._kill_peers()
                    raise RankLost(
                        f"rank 0 made no progress for {hang_s:g} s in `{name}`: it hangs, or waits for a rank that "
                        "hangs (--hang-seconds)"
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

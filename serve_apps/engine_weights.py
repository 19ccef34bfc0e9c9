"""`EngineWeights`: the weights that an engine runs, as the log publishes them.

weights.published -> verify the files -> load them under the running requests -> append weights.activated
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from schemas.errors import DeadlineExceeded, WeightsDamaged
from schemas.subjects import of_type
from schemas.weights import WeightsActivated, WeightsPublished
from serve_apps.engine.engine import Engine
from slime_events.worker import Worker
from storage.follow import Follower
from storage.group_commit import GroupCommit
from storage.log import Append
from storage.weights_store import WeightStore, local_folder, verify

LOOK_S = 0.2
"""Seconds between looks for files that are not there yet."""


class EngineWeights:
    """url: this run's weight store, for versions that were published from a folder that is not there.

    under_way: how many rollouts there are now. deadline_s: how long a request may wait for the weights it asks for.
    """

    def __init__(
        self,
        worker: Worker,
        engine: Engine,
        commit: GroupCommit,
        *,
        url: str | None,
        under_way: Callable[[], int],
        deadline_s: float,
    ) -> None:
        self._worker, self._engine, self._commit = worker, engine, commit
        self._url, self._under_way, self._deadline_s = url, under_way, deadline_s
        self._version = -1
        self._changed = asyncio.Condition()

    async def follow(self) -> None:
        """Load every version that is published, for ever."""
        subject = of_type(self._worker.log.run, "weights.published")
        async with Follower(self._worker.log, subject=subject) as follower:
            while True:
                events = await follower.next(wait_s=60.0)
                if events:
                    newest = events[-1].envelope
                    assert isinstance(newest.event, WeightsPublished)
                    await self._activate(newest.event, newest.at)

    async def _find(self, published: WeightsPublished) -> str:
        """Where a version lies: as published, or with this run's weights where the run was restored elsewhere.

        A trainer that takes over writes again what is missing, so it is waited for. Raises WeightsDamaged.
        """
        there = local_folder(published.url)
        store, end = WeightStore(self._url or str(there.parent)), time.monotonic() + self._deadline_s
        while not there.is_dir():
            try:
                return store.folder(published.version, published.digest)
            except WeightsDamaged:
                if time.monotonic() > end:
                    raise
            await asyncio.sleep(LOOK_S)
        return published.url

    async def _activate(self, published: WeightsPublished, published_at: int) -> None:
        """Verify the files, load them under the running requests, and say so."""
        begun = time.perf_counter()
        folder = await self._find(published)
        await asyncio.to_thread(verify, folder, published.digest)
        resumed = self._under_way()
        await self._engine.update_weights(folder, published.version)
        async with self._changed:
            self._version = published.version
            self._changed.notify_all()
        activated = WeightsActivated(
            version=published.version,
            engine=self._worker.id,
            digest=published.digest,
            seconds=time.perf_counter() - begun,
            lag=max(0.0, (time.time_ns() - published_at) / 1e9),
            resumed=resumed,
        )
        await self._commit.append([Append(self._worker.enclose(activated))])

    async def at_least(self, version: int) -> None:
        """Wait until the engine runs this version or a newer one. Raises DeadlineExceeded."""
        if self._version >= version:
            return
        try:
            async with asyncio.timeout(self._deadline_s), self._changed:
                await self._changed.wait_for(lambda: self._version >= version)
        except TimeoutError:
            raise DeadlineExceeded(
                f"waited {self._deadline_s:.0f} s for weight version {version}, engine has {self._version}"
            ) from None

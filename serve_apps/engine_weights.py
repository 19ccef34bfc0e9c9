"""`EngineWeights`: the weights that an engine runs, and which of its rollouts may go on meanwhile.

    weights.published -> choose a version (`version_choice`) -> verify its files -> pause the rollouts that it may not
                         make -> load it under the others -> append weights.activated

A rollout claims the versions that may make it, and generates only while the engine runs one of them (`PausingEngine`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator

from schemas.errors import DeadlineExceeded, EngineError, WeightsDamaged
from schemas.rollouts import RolloutRequested
from schemas.subjects import of_type
from schemas.weights import WeightsActivated, WeightsPublished
from serve_apps.engine.engine import Engine
from serve_apps.version_choice import Choice, Claim, choose_version
from slime_events.core.run.participant import Participant
from storage.follow import Follower
from storage.group_commit import GroupCommit
from storage.log import Append
from storage.weights.store import WeightStore, local_folder, verify

LOOK_S = 0.2
"""Seconds between looks for files that are not there yet."""
DEADLINE_S = 600.0
HOLD_S = 5.0


class EngineWeights:
    """url: this run's weight store, for versions that were published from a folder that is not there.

    deadline_s: how long a rollout may wait for weights that it accepts. hold_s: see `choose_version`.
    """

    def __init__(
        self,
        worker: Participant,
        engine: Engine,
        commit: GroupCommit,
        *,
        url: str | None = None,
        deadline_s: float = DEADLINE_S,
        hold_s: float = HOLD_S,
    ) -> None:
        self._worker, self._engine, self._commit = worker, engine, commit
        self._url, self._deadline_s, self._hold_s = url, deadline_s, hold_s
        self._published: dict[int, tuple[WeightsPublished, int]] = {}
        self._gone: dict[int | None, str] = {}
        self._activations: Counter[int] = Counter()
        self._newest = self._version = -1
        self._next: int | None = None
        self._since = time.monotonic()
        self._claims: set[Claim] = set()
        self._evaluations = 0
        self._generating: dict[str, Claim] = {}
        self._moved = asyncio.Event()

    async def follow(self) -> None:
        """Read what is published, for ever."""
        subject = of_type(self._worker.log.run, "weights.published")
        async with Follower(self._worker.log, subject=subject) as follower:
            while True:
                for recorded in await follower.next(wait_s=60.0):
                    event = recorded.envelope.event
                    assert isinstance(event, WeightsPublished)
                    self._published[event.version] = event, recorded.envelope.at
                if follower.caught_up:
                    self._newest = next(reversed(self._published), -1)
                    self._tell()

    async def switch(self) -> None:
        """Load what is chosen, for ever."""
        while True:
            moved, choice = self._moved, self._choose()
            if choice.version != self._version:
                await self._switch_to(choice.version)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(choice.look_again_s):
                    await moved.wait()

    def _choose(self) -> Choice:
        if not self._evaluations:
            return Choice(self._newest)
        now = time.monotonic()
        claims = [claim for claim in self._claims if claim.newest not in self._gone]
        return choose_version(self._version, self._newest, claims, now=now, since=self._since, hold_s=self._hold_s)

    async def _switch_to(self, version: int) -> None:
        if version not in self._published:
            self._gone[version] = f"version {version} was never published"
            self._tell()
            return
        published, published_at = self._published[version]
        try:
            folder = await self._find(published)
            await asyncio.to_thread(verify, folder, published.digest)
        except WeightsDamaged as error:
            if version == self._newest:
                raise
            self._gone[version] = str(error)
            self._tell()
            return
        self._next = version
        try:
            await self._pause(version)
            await self._activate(folder, published, published_at)
        finally:
            self._next = None
            self._tell()

    async def _pause(self, version: int) -> None:
        """Until nothing is generated that `version` may not make. What the engine aborts for it goes on later.

        Raises EngineError where a generation does not end.
        """
        leaving = [rid for rid, claim in self._generating.items() if not claim.accepts(version)]
        await asyncio.gather(*map(self._engine.abort, leaving))
        try:
            async with asyncio.timeout(self._deadline_s):
                while not all(claim.accepts(version) for claim in self._generating.values()):
                    await self._moved.wait()
        except TimeoutError:
            raise EngineError(
                f"weight version {version} is not loaded: {len(leaving)} rollouts were to pause for it, and did not in "
                f"{self._deadline_s:.0f} s"
            ) from None

    async def _find(self, published: WeightsPublished) -> str:
        """Where a version lies: as published, or with this run's weights where the run was restored elsewhere.

        A trainer that takes over writes the newest again where it is missing, so that is waited for. WeightsDamaged.
        """
        there = local_folder(published.url)
        patience = self._deadline_s if published.version == self._newest else 0.0
        store, end = WeightStore(self._url or str(there.parent)), time.monotonic() + patience
        while not there.is_dir():
            try:
                return store.folder(published.version, published.digest)
            except WeightsDamaged:
                if time.monotonic() >= end:
                    raise
            await asyncio.sleep(LOOK_S)
        return published.url

    async def _activate(self, folder: str, published: WeightsPublished, published_at: int) -> None:
        """Load the files under the running requests, and say so."""
        begun = time.perf_counter()
        resumed = len(self._generating)
        await self._engine.update_weights(folder, published.version)
        self._version, self._since = published.version, time.monotonic()
        for claim in self._claims:
            accepted = claim.accepts(self._version)
            claim.waiting_since = None if accepted else claim.waiting_since or self._since
        self._next = None
        self._tell()
        returns = self._activations[published.version]
        self._activations[published.version] += 1
        activated = WeightsActivated(
            version=published.version,
            engine=self._worker.id,
            digest=published.digest,
            seconds=time.perf_counter() - begun,
            lag=0.0 if returns else max(0.0, (time.time_ns() - published_at) / 1e9),
            resumed=resumed,
            returns=returns,
        )
        await self._commit.append([Append(self._worker.enclose(activated))])

    @contextlib.asynccontextmanager
    async def claimed_by(self, request: RolloutRequested) -> AsyncIterator[Claim]:
        """While a rollout is made; it begins once the engine runs weights that it accepts. See `accepted_by`."""
        claim = Claim(request.min_version, request.max_version)
        claim.waiting_since = None if claim.accepts(self._version) else time.monotonic()
        is_evaluation = claim.newest is not None
        self._claims.add(claim)
        self._evaluations += is_evaluation
        self._tell_of_evaluations()
        try:
            await self.accepted_by(claim)
            yield claim
        finally:
            self._claims.discard(claim)
            self._tell_of_evaluations()
            self._evaluations -= is_evaluation

    async def accepted_by(self, claim: Claim) -> None:
        """Wait until the engine runs weights that the rollout accepts, and is not about to leave them.

        Raises DeadlineExceeded, and WeightsDamaged where the only version that it accepts is not there any more.
        """
        try:
            async with asyncio.timeout(self._deadline_s):
                while not self._may_generate(claim):
                    if gone := self._gone.get(claim.newest):
                        raise WeightsDamaged(f"an evaluation needs weight version {claim.newest}: {gone}")
                    await self._moved.wait()
        except TimeoutError:
            wanted = f"{claim.oldest}" if claim.newest == claim.oldest else f"{claim.oldest} or a newer one"
            raise DeadlineExceeded(
                f"waited {self._deadline_s:.0f} s for weight version {wanted}, engine has {self._version}"
            ) from None

    def _may_generate(self, claim: Claim) -> bool:
        return claim.accepts(self._version) and not self.pauses(claim)

    def pauses(self, claim: Claim) -> bool:
        """Whether weights are about to be loaded that the rollout does not accept."""
        return self._next is not None and not claim.accepts(self._next)

    @contextlib.asynccontextmanager
    async def generating(self, rid: str, claim: Claim) -> AsyncIterator[str]:
        """A generation, from when it may begin; under this name, or another where a turn of the rollout has that."""
        await self.accepted_by(claim)
        name, number = rid, 0
        while name in self._generating:
            number += 1
            name = f"{rid}.{number}"
        self._generating[name] = claim
        try:
            yield name
        finally:
            del self._generating[name]
            if self._next is not None:
                self._tell()

    def _tell(self) -> None:
        """Wake up everybody who waits for a change."""
        self._moved.set()
        self._moved = asyncio.Event()

    def _tell_of_evaluations(self) -> None:
        if self._evaluations:
            self._tell()

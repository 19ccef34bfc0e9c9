"""`EngineWeights`: the weights that an engine runs, and which of its rollouts may generate.

    weights.published -> choose a version (`choose_version`) -> bring its verified files here (`Delivery`)
                      -> pause the rollouts that do not accept it -> load it under the others
                      -> append weights.activated

A rollout claims the versions that may make it, and generates only while the engine runs one of them (`generate`). A
training rollout accepts its requested version and every newer one, an evaluation exactly one version. The engine runs
one version at a time, so a rollout may have to wait:

    newer weights are published -> an evaluation in progress keeps the engine for at most `hold_s` seconds, counted
                                   from the time when training waits for the newer ones; then it is paused
    an evaluation is paused     -> it continues when there is no other work here, or after `PATIENCE` x `hold_s`
                                   seconds, again for at most `hold_s` seconds once training waits
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace
from itertools import count
from typing import Annotated, NamedTuple

import numpy as np

from schemas.doc import doc
from schemas.errors import DeadlineExceeded, EngineError, WeightsDamaged
from schemas.rollouts import RolloutRequested, StopReason
from schemas.subjects import of_type
from schemas.weights import WeightsActivated, WeightsCarrier, WeightsPublished
from serve_apps.engines.carriers.carrier import BESIDE, LiveCarrier, WeightPlaces
from serve_apps.engines.carriers.delivery import Broadcast, Delivery, Update
from serve_apps.engines.carriers.registry import LIVE
from serve_apps.engines.checks import checked
from serve_apps.engines.engine import Delta, Engine, GenerateRequest, Receiver
from serve_apps.engines.limits import NO_LIMITS, EngineLimits
from slime_events.core.run.participant import Participant
from storage.group_commit import GroupCommit
from storage.log import Append, CountsRefusals, Recorded

DEADLINE_S = 600.0
HOLD_S = 5.0
NO_WEIGHTS = -1
"""Version of an engine that has loaded nothing, or rests. No rollout accepts it."""
PATIENCE = 10
"""Training waits for evaluations for at most a tenth of its time, however long their answers are."""


@dataclass(eq=False, slots=True)
class Claim:
    """The weight versions that may make a rollout."""

    oldest: int
    newest: Annotated[int | None, doc("None accepts any newer version.")] = None
    waiting_since: Annotated[
        float | None, doc("Monotonic time [s] since which the engine runs no accepted version; None while it runs one.")
    ] = None

    def accepts(self, version: int) -> bool:
        """Return whether this version may make the rollout."""
        return self.oldest <= version and (self.newest is None or version <= self.newest)


class Choice(NamedTuple):
    """A version to run."""

    version: int
    recheck_s: Annotated[
        float | None, doc("Seconds until the choice must be made again, even if nothing else changes.")
    ] = None


def choose_version(
    current: int, published: int, claims: Collection[Claim], *, now: float, since: float, hold_s: float
) -> Choice:
    """Return the version to run: `current`, the newest `published`, or that of a waiting evaluation. Pure.

    `claims` are those of the rollouts that this engine has taken. It runs `current` since `since`; `now` and `since`
    are seconds of one monotonic clock. `hold_s` is how long an evaluation may keep training from newer weights.
    """
    evaluations = [claim for claim in claims if claim.newest is not None]
    is_evaluating = any(claim.accepts(current) for claim in evaluations)
    if current != published:
        if not is_evaluating:
            return Choice(published)
        waiting = [c.waiting_since for c in claims if c.newest is None and c.waiting_since is not None]
        if not waiting:
            return Choice(current)
        left = hold_s - (now - max(since, min(waiting)))
        return Choice(published) if left <= 0 else Choice(current, left)
    paused = [claim for claim in evaluations if claim.newest is not None and claim.newest < current]
    if not paused:
        return Choice(current)
    eldest = min(paused, key=lambda claim: now if claim.waiting_since is None else claim.waiting_since)
    left = PATIENCE * hold_s - (now - (now if eldest.waiting_since is None else eldest.waiting_since))
    is_idle = len(paused) == len(claims)
    return Choice(eldest.oldest) if is_idle or left <= 0 else Choice(current, left)


class EngineWeights:
    """The weights of one engine.

    `deadline_s` is how long a rollout may wait for accepted weights. For `hold_s` see `choose_version`. `limits`
    restrict the engine's requests and answers.
    """

    def __init__(
        self,
        worker: Participant,
        engine: Engine,
        commit: GroupCommit,
        *,
        places: WeightPlaces = BESIDE,
        deadline_s: float = DEADLINE_S,
        hold_s: float = HOLD_S,
        limits: EngineLimits = NO_LIMITS,
    ) -> None:
        self._limits, self._interrupted = limits, dict[str, None]()
        self._worker, self._engine, self._commit = worker, engine, commit
        self._delivery, self._deadline_s, self._hold_s = Delivery(places, _live(worker, engine)), deadline_s, hold_s
        self._missing: dict[int | None, str] = {}
        self._activations: Counter[int] = Counter()
        self._refused = 0
        self._newest = self._version = NO_WEIGHTS
        self._followed: Recorded | None = None
        self._next: int | None = None
        self._loading = asyncio.Lock()
        self._since = time.monotonic()
        self._claims: set[Claim] = set()
        self._evaluations = 0
        self._generating: dict[str, Claim] = {}
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        """Follow published weights, until cancelled. Begins at the newest: a long run has thousands of versions."""
        log = self._worker.log
        subject = of_type(log.run, "weights.published")
        newest = await log.last(subject)
        async for recorded in log.read(newest.position if newest else 1, subject, follow=True):
            event = recorded.envelope.event
            assert isinstance(event, WeightsPublished)
            self._newest, self._followed = event.version, recorded
            self._notify()

    async def switch(self) -> None:
        """Load the chosen version, until cancelled."""
        while True:
            changed, choice = self._changed, self._choose()
            if choice.version != self._version:
                await self._switch_to(choice.version)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(choice.recheck_s):
                    await changed.wait()

    def _choose(self) -> Choice:
        claims = [claim for claim in self._claims if claim.newest not in self._missing]
        return choose_version(
            self._version, self._newest, claims, now=time.monotonic(), since=self._since, hold_s=self._hold_s
        )

    async def _switch_to(self, version: int) -> None:
        with contextlib.ExitStack() as held:
            try:
                published, published_at = await self._published(version)
                wait_s = self._deadline_s if version == self._newest else 0.0
                is_update = 0 <= self._version < version
                update = await self._delivery.prepare(published, held, wait_s=wait_s, is_update=is_update)
            except WeightsDamaged as error:
                if version == self._newest:
                    raise
                self._missing[version] = str(error)
                self._notify()
                return
            async with self._loading:
                self._next = version
                try:
                    await self._pause(version)
                    activated = await self._activate(update, published_at, held)
                finally:
                    self._next = None
                    self._notify()
                await self._commit.append([Append(self._worker.enclose(activated))])

    async def _published(self, version: int) -> tuple[WeightsPublished, int]:
        """Return a version's event and its time [UTC nanoseconds]. Raises WeightsDamaged.

        The newest event is already read. Training waits for it, so it is not read again.
        """
        log, recorded = self._worker.log, self._followed
        if version != self._newest:
            recorded = await log.last(of_type(log.run, "weights.published", str(version)))
        if recorded is None:
            raise WeightsDamaged(f"version {version} was never published")
        assert isinstance(recorded.envelope.event, WeightsPublished)
        return recorded.envelope.event, recorded.envelope.at

    async def _pause(self, version: int) -> None:
        """Abort the generations that do not accept `version`, and wait until they have ended. They continue later.

        Raises EngineError if a generation does not end.
        """
        leaving = [rid for rid, claim in self._generating.items() if not claim.accepts(version)]
        await asyncio.gather(*map(self._engine.abort, leaving))
        try:
            async with asyncio.timeout(self._deadline_s):
                while not all(claim.accepts(version) for claim in self._generating.values()):
                    await self._changed.wait()
        except TimeoutError:
            change = (
                "the devices are not released" if version == NO_WEIGHTS else f"weight version {version} is not loaded"
            )
            raise EngineError(
                f"{change}: {len(leaving)} rollouts had to pause for it, but did not within {self._deadline_s:.0f} s"
            ) from None

    async def _activate(
        self, update: Update | Broadcast, published_at: int, held: contextlib.ExitStack
    ) -> WeightsActivated:
        """Load the version under the running requests."""
        published = update.published
        begun = time.perf_counter()
        resumed = len(self._generating)
        if isinstance(update, Broadcast):
            update = await self._receive(update, held) or update
        if isinstance(update, Update):
            try:
                await self._engine.update_weights(str(update.folder), published.version)
            except EngineError:
                self._delivery.failures[update.carrier] += 1
                raise
        self._delivery.failures[update.carrier] = 0
        self._version, self._since = published.version, time.monotonic()
        for claim in self._claims:
            accepted = claim.accepts(self._version)
            claim.waiting_since = None if accepted else claim.waiting_since or self._since
        returns = self._activations[published.version]
        self._activations[published.version] += 1
        return WeightsActivated(
            version=published.version,
            engine=self._worker.id,
            digest=published.digest,
            seconds=time.perf_counter() - begun,
            lag=0.0 if returns else max(0.0, (time.time_ns() - published_at) / 1e9),
            resumed=resumed,
            returns=returns,
            refused_batches=self._newly_refused(),
            carrier=update.carrier,
        )

    async def _receive(self, update: Broadcast, held: contextlib.ExitStack) -> Update | None:
        """Receive a version from its group; if that fails, return its files, which the engine then needs."""
        assert isinstance(self._engine, Receiver), "only such an engine has a live carrier"
        group, published = update.group, update.published
        try:
            reason = await self._engine.receive_weights(group, group.members[self._worker.id], published.digest)
        except EngineError:
            self._delivery.failures[update.carrier] += 1
            raise
        if reason is None:
            return None
        self._delivery.fail(update.carrier, published, reason)
        return await self._delivery.bring(published, held, wait_s=self._deadline_s)

    def _newly_refused(self) -> int:
        log, before = self._worker.log, self._refused
        self._refused = log.refused_batches() if isinstance(log, CountsRefusals) else 0
        return self._refused - before

    def may_begin(self, request: RolloutRequested) -> bool:
        """Return whether the engine can begin a request now, and any newer weights may continue it."""
        claim = Claim(request.min_version, request.max_version)
        return claim.newest is None and claim.accepts(self._version)

    async def claim(self, request: RolloutRequested) -> Claim:
        """Return a rollout's claim, once the engine runs accepted weights. `unclaim` it when the rollout is done.

        Raises the errors of `_wait_until_accepted`. In that case nothing is claimed.
        """
        claim = Claim(request.min_version, request.max_version)
        claim.waiting_since = None if claim.accepts(self._version) else time.monotonic()
        self._claims.add(claim)
        self._evaluations += claim.newest is not None
        self._notify_of_evaluations()
        try:
            await self._wait_until_accepted(claim)
        except BaseException:  # cancelled too: nothing stays claimed
            self.unclaim(claim)
            raise
        return claim

    def unclaim(self, claim: Claim) -> None:
        """Drop the claim of a rollout that is done, or given up."""
        self._notify_of_evaluations()
        self._claims.discard(claim)
        self._evaluations -= claim.newest is not None

    async def _wait_until_accepted(self, claim: Claim) -> None:
        """Wait until the engine runs weights that the rollout accepts, and is not about to replace them.

        Raises DeadlineExceeded, and WeightsDamaged if the only accepted version is missing.
        """
        if not self._has_to_wait(claim):  # the common case; setting a deadline costs more than this check
            return
        try:
            async with asyncio.timeout(self._deadline_s) as limit:
                while self._has_to_wait(claim):
                    if self._next == NO_WEIGHTS:  # a step may take longer than any weights
                        limit.reschedule(None)
                    elif limit.when() is None:
                        limit.reschedule(asyncio.get_running_loop().time() + self._deadline_s)
                    if missing := self._missing.get(claim.newest):
                        raise WeightsDamaged(f"an evaluation needs weight version {claim.newest}: {missing}")
                    await self._changed.wait()
        except TimeoutError:
            expected = f"{claim.oldest}" if claim.newest == claim.oldest else f"{claim.oldest} or newer"
            raise DeadlineExceeded(
                f"waited {self._deadline_s:.0f} s for weight version {expected}, but the engine has {self._version}"
            ) from None

    def _has_to_wait(self, claim: Claim) -> bool:
        return not claim.accepts(self._version) or self._pauses(claim)

    def _pauses(self, claim: Claim) -> bool:
        """Return whether weights are about to be loaded that the rollout does not accept."""
        return self._next is not None and not claim.accepts(self._next)

    async def generate(self, claim: Claim, request: GenerateRequest) -> AsyncIterator[Delta]:
        """Generate as `Engine.generate`. Pauses while the engine runs weights that may not make the rollout.

        After a pause it continues from its last token. Raises DeadlineExceeded, and InvalidValue for a request that the
        engine would refuse or crash on.
        """
        await self._limits.check(request)
        tokens, paused = [request.resume], True
        while paused:
            paused = False
            await self._wait_until_accepted(claim)
            rid = self._free_name(request.rid)
            self._generating[rid] = claim
            is_first = rid == request.rid and len(tokens) == 1
            sent = request if is_first else replace(request, rid=rid, resume=np.concatenate(tokens))
            try:
                deltas = self._engine.generate(sent)
                async with contextlib.aclosing(deltas):  # type: ignore[type-var]
                    async for raw in deltas:
                        delta = checked(raw, self._limits.vocabulary, request.rid)
                        tokens.append(delta.tokens)
                        for span in delta.spans:  # no older version may continue the work of a newer one
                            if span.version > claim.oldest:
                                claim.oldest = span.version
                        ended = delta.finish is not None and delta.finish is not StopReason.ABORT
                        paused = not ended and self._pauses(claim)
                        yield replace(delta, finish=None, text=None) if paused else delta
                        if paused:
                            break
            except EngineError:
                self._interrupted[request.rid] = None
                raise
            finally:
                del self._generating[rid]
                if self._next is not None:
                    self._notify()

    def under_way(self) -> list[str]:
        """Return the names of requests in progress, or interrupted when the engine failed, the latest first."""
        return [*dict.fromkeys([*reversed(self._generating), *reversed(self._interrupted)])]

    def forget(self, sample: str) -> None:
        """Forget a sample's interrupted requests: the engine has survived them."""
        for rid in [rid for rid in self._interrupted if rid.startswith(f"{sample}-")]:
            del self._interrupted[rid]

    def _free_name(self, rid: str) -> str:
        """Return the request's own name, or another one if a parallel turn of the rollout uses it."""
        if rid not in self._generating:
            return rid
        return next(name for number in count(1) if (name := f"{rid}.{number}") not in self._generating)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _notify_of_evaluations(self) -> None:
        if self._evaluations:
            self._notify()


def _live(worker: Participant, engine: Engine) -> dict[WeightsCarrier, LiveCarrier]:
    """Return the ways by which the engine can receive weights without files."""
    if not isinstance(engine, Receiver) or not engine.group_ranks:
        return {}
    return {name: carrier(worker, engine) for name, carrier in LIVE.items()}

"""`VirtualEngines`: the engines of a simulated run, which take requests from one queue as rollout workers do."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from schemas.doc import doc
from schemas.rollouts import RolloutProgressed, RolloutRequested, StopReason, WeightSpan
from schemas.weights import WeightsActivated
from schemas.workers import WorkerLost
from serve_apps.rollouts.rollout_worker import TAKE_LIMIT
from slime_events.analysis.what_if.clock import Clock
from slime_events.core.config.engine import lease_of
from slime_events.core.state.partial_events import PARTIAL_EVENTS, ArrayLength, Completed
from tests.simulation.scale.costs import Costs

Append = Callable[[Sequence[Any]], None]
"""Appends events in one call."""
_progressed: Any = PARTIAL_EVENTS[RolloutProgressed]


@dataclass(slots=True, eq=False)
class Work:
    """A requested sample, and its lease."""

    request: RolloutRequested
    length: Annotated[int, doc("tokens that it will have")]
    durable: Annotated[int, doc("tokens in the log")] = 0
    start: Annotated[int, doc("tokens at its begin on this engine")] = 0
    begin: Annotated[float, doc("begin on this engine [s]")] = 0.0
    paused: Annotated[float, doc("time that the engine was paused before [s]")] = 0.0
    first: Annotated[int, doc("oldest weight version in it; -1: no token yet")] = -1
    deliveries: int = 0


@dataclass(slots=True, eq=False)
class VirtualEngine:
    """One engine. Its samples have the same speed, however many they are."""

    name: str
    version: int = 0
    running: dict[str, Work] = field(default_factory=dict)
    asks: Annotated[bool, doc("it waits for requests")] = True
    is_lost: bool = False
    paused: Annotated[float, doc("time in which it generated nothing because it loaded weights [s]")] = 0.0
    used: Annotated[float, doc("sum over its samples of their time [s]")] = 0.0
    idle: Annotated[float, doc("time without a sample [s]")] = 0.0
    looked: Annotated[float, doc("time up to which `used` and `idle` count [s]")] = 0.0

    def count(self, now: float) -> None:
        """Count the time since the last change."""
        passed, self.looked = now - self.looked, now
        self.used += passed * len(self.running)
        self.idle += passed if not self.running else 0.0


class VirtualEngines:
    """All engines. on_end: called with each sample that has ended, after its event."""

    def __init__(
        self, costs: Costs, clock: Clock, chance: random.Random, append: Append, on_end: Callable[[Work], None]
    ) -> None:
        self._costs, self._clock, self._chance, self._append, self._on_end = costs, clock, chance, append, on_end
        self.engines = [VirtualEngine(f"engine-{number:05d}") for number in range(costs.engines)]
        self.queue: deque[Work] = deque()
        self._asking = deque(self.engines)
        self.lost, self._every_s = 0, costs.chunks_s
        for engine in self.engines:
            clock.after(chance.random() * self._every_s, partial(self._chunks, engine))
        self._await_loss()

    @property
    def leases(self) -> int:
        """Number of requests that engines hold."""
        return sum(len(engine.running) for engine in self.engines)

    def request(self, requests: Sequence[RolloutRequested]) -> None:
        """Add requests to the queue, and hand out what engines have room for."""
        self.queue.extend(Work(request, self._costs.length(self._chance)) for request in requests)
        self._hand_out()

    def publish(self, version: int) -> None:
        """Let each engine load new weights, not all at the same time."""
        for engine in self.engines:
            self._clock.after(self._loading(), partial(self._activate, engine, version))

    def _loading(self) -> float:
        return self._costs.loading_s * (0.5 + self._chance.random())

    def _activate(self, engine: VirtualEngine, version: int) -> None:
        if engine.is_lost or version <= engine.version:
            return
        engine.version = version
        engine.paused += self._costs.loading_s
        self._append([WeightsActivated(version=version, engine=engine.name, digest="", seconds=self._costs.loading_s)])
        self._ask(engine)

    def _ask(self, engine: VirtualEngine) -> None:
        if not (engine.asks or engine.is_lost) and len(engine.running) < self._costs.room:
            engine.asks = True
            self._asking.append(engine)
        self._hand_out()

    def _hand_out(self) -> None:
        """Give the oldest requests to the engines that have asked first, a few each."""
        queue, asking, room = self.queue, self._asking, self._costs.room
        while queue and asking:
            engine = asking.popleft()
            engine.asks = False
            if engine.is_lost:
                continue
            for _ in range(min(TAKE_LIMIT, room - len(engine.running), len(queue))):
                self._begin(engine, queue.popleft())
            if len(engine.running) < room:
                engine.asks = True
                asking.append(engine)

    def _begin(self, engine: VirtualEngine, work: Work) -> None:
        now = self._clock.now
        engine.count(now)
        engine.running[work.request.sample] = work
        work.begin, work.paused, work.start = now, engine.paused, work.durable
        work.deliveries += 1
        seconds = (work.length - work.start) / self._costs.tokens_per_s
        self._clock.after(seconds, partial(self._end, engine, work, work.deliveries))

    def _end(self, engine: VirtualEngine, work: Work, delivery: int) -> None:
        """End a sample, or continue it for as long as its engine has paused meanwhile."""
        if work.deliveries != delivery or engine.running.get(work.request.sample) is not work:
            return
        if engine.paused > work.paused:
            late, work.paused = engine.paused - work.paused, engine.paused
            work.begin += late
            self._clock.after(late, partial(self._end, engine, work, delivery))
            return
        engine.count(self._clock.now)
        request, last = work.request, max(engine.version, request_version(work))
        del engine.running[request.sample]
        spans = (WeightSpan(work.durable, work.length, last),)
        if work.durable:
            spans = (WeightSpan(0, work.durable, work.first), *spans)
        completed = Completed(
            sample=request.sample, group=request.group, attempt=0, length=work.length, stop=StopReason.STOP,
            spans=spans, digest=request.sample, rollout="",
        )  # fmt: skip
        self._append([completed])
        self._on_end(work)
        self._ask(engine)

    def _chunks(self, engine: VirtualEngine) -> None:
        """Append the new tokens of all samples of an engine in one call."""
        costs, now = self._costs, self._clock.now
        self._clock.after(self._every_s, partial(self._chunks, engine))
        chunks = []
        for sample, work in engine.running.items():
            seconds = now - work.begin - (engine.paused - work.paused)
            reached = min(work.length - 1, work.start + int(seconds * costs.tokens_per_s))
            if reached > work.durable:
                version = max(engine.version, request_version(work))
                work.first = version if work.first < 0 else work.first
                spans = (WeightSpan(work.durable, reached, version),)
                tokens = ArrayLength(reached - work.durable)
                chunks.append(
                    _progressed(sample=sample, start=work.durable, tokens=tokens, spans=spans, engine=engine.name)
                )
                work.durable = reached
        if chunks:
            self._append(chunks)

    def _await_loss(self) -> None:
        if self._costs.losses_per_hour > 0:
            self._clock.after(self._chance.expovariate(self._costs.losses_per_hour / 3600), self._lose)

    def _lose(self) -> None:
        """Lose an engine: its requests go back to the queue after a lease, and continue from their last chunks."""
        self._await_loss()
        engine = self._chance.choice(self.engines)
        if engine.is_lost:
            return
        engine.count(self._clock.now)
        engine.is_lost, self.lost = True, self.lost + 1
        held = list(engine.running.values())
        engine.running.clear()
        self._append([WorkerLost(worker=engine.name, role="engine", reason="lost")])
        self._clock.after(lease_of(len(self.engines)), partial(self._give_back, held))
        self._clock.after(self._costs.away_s, partial(self._return, engine))

    def _give_back(self, held: Sequence[Work]) -> None:
        self.queue.extendleft(reversed(held))
        self._hand_out()

    def _return(self, engine: VirtualEngine) -> None:
        engine.count(self._clock.now)
        engine.is_lost = False
        newest = max(other.version for other in self.engines)
        engine.version = newest - 1
        self._activate(engine, newest)


def request_version(work: Work) -> int:
    """Return the oldest version that may answer a request: an engine that is older loads newer weights first."""
    return max(0, work.request.min_version)

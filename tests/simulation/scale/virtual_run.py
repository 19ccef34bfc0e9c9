"""`VirtualRun`: a run in virtual time. The real conductor decides on the real fold of the events of all roles.

Engines, graders and the trainer are their costs. A cycle of the conductor follows the events that it reads at once, as
in its process: here those of `Costs.cycle_s`.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from schemas.arrays import Array
from schemas.batches import BatchSealed
from schemas.event import Event
from schemas.ids import TRAIN, group_id
from schemas.prompts import PromptSubmitted, Source
from schemas.rollouts import RolloutRequested
from schemas.runs import RunStarted
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.analysis.what_if.clock import Clock
from slime_events.core.state.apply import apply_all
from slime_events.core.state.partial_events import Rewarded
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.cycle import run_cycle
from slime_events.loop.conductor.draw import reused_rollouts_due
from slime_events.plugins.filters.decide import keep
from tests.simulation.scale.costs import Costs
from tests.simulation.scale.measures import RUN, Measures
from tests.simulation.scale.virtual_engines import VirtualEngines, Work

SNAPSHOT_S = 600.0
"""Virtual time between two snapshots that are measured [s]."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An event as the fold reads it. at: UTC nanoseconds."""

    at: int
    event: Any


class Prompts:
    """Endless prompts of one length."""

    def __init__(self, tokens: int) -> None:
        self._tokens, self._drawn = Array(dtype="int32", n=tokens), 0

    def observe(self, recorded: object) -> None:
        """See `Feed.observe`."""

    def malformed(self) -> list[Any]:
        """See `Feed.malformed`."""
        return []

    def take(self, cursors: object, count: int) -> list[Any]:
        """See `Feed.take`."""
        first, self._drawn = self._drawn, self._drawn + count
        return [
            PromptSubmitted(
                group=group_id(TRAIN, 0, number),
                text="",
                tokens=self._tokens,
                source=Source(path=TRAIN, row=number, offset=number),
            )
            for number in range(first, first + count)
        ]

    def evaluation(self, name: str, version: int) -> list[Any]:
        """See `Feed.evaluation`."""
        return []


class VirtualRun:
    """A simulated run, from its first weights to the end of the simulated time."""

    def __init__(self, costs: Costs) -> None:
        costs.check()
        self.costs, self.plan, self.measures = costs, costs.plan(), Measures()
        self.state, self.clock = RunState(run=RUN), Clock()
        self._chance, self._feed = random.Random(costs.seed), Prompts(costs.prompt)
        self._batches: deque[BatchSealed] = deque()
        self._due = self._trains = False
        self.training_s = 0.0
        self.engines = VirtualEngines(costs, self.clock, self._chance, self._append, self._grade)

    def run(self, seconds: float) -> None:
        """Simulate `seconds` of virtual time."""
        self._append([RunStarted(settings={}, code_version="")])
        self._append([WeightsPublished(version=0, parent=None, url="", digest="", bytes=0)])
        self.clock.after(0.0, self._cycle)
        self.clock.after(SNAPSHOT_S, self._snapshot)
        over: list[None] = []
        self.clock.after(seconds, partial(over.append, None))
        self.clock.run(lambda: bool(over))
        for engine in self.engines.engines:
            engine.count(self.clock.now)

    def _append(self, events: Sequence[Any]) -> None:
        """Append events in one call, and fold them in."""
        at = 1 + round(self.clock.now * 1e9)
        entries = [Entry(at, event) for event in events]
        begun = time.perf_counter()
        apply_all(self.state, [(self.state.events + 1, entries)], "")
        self.measures.folded(events, time.perf_counter() - begun, self.costs.prompt)

    def _cycle(self) -> None:
        self.clock.after(self.costs.cycle_s, self._cycle)
        if not self._due and self.state.events > 2:
            return
        self._due = False
        begun = time.perf_counter()
        events: list[Event] = run_cycle(self.state, self.plan, keep, lambda raw, sizes: list(raw), self._feed)
        reused_rollouts_due(self.state)
        took = time.perf_counter() - begun
        batches = [event for event in events if isinstance(event, BatchSealed)]
        (self.measures.sealing if batches else self.measures.cycles).append(took)
        if not events:
            return
        self._due = True  # the conductor reads its own events too
        self._append(events)
        self.engines.request([event for event in events if isinstance(event, RolloutRequested)])
        self._batches.extend(batches)
        self._train()

    def _grade(self, work: Work) -> None:
        self._due = True
        mean = self.costs.grading_s
        self.clock.after(self._chance.expovariate(1 / mean) if mean else 0.0, partial(self._assign, work))

    def _assign(self, work: Work) -> None:
        self._due = True
        value = float(self._chance.random() < 0.5)
        self._append([Rewarded(sample=work.request.sample, group=work.request.group, value=value)])

    def _train(self) -> None:
        if self._batches and not self._trains:
            self._trains = True
            self.training_s += self.costs.step_s
            self.clock.after(self.costs.step_s, partial(self._commit, self._batches.popleft()))

    def _commit(self, batch: BatchSealed) -> None:
        self._trains, self._due, version = False, True, batch.step + 1
        committed = StepCommitted(
            step=batch.step, batch_digest=batch.digest, parent_version=batch.step, version=version, weights_digest="",
            optimizer_digest="", samples=len(batch.samples), tokens=0,
        )  # fmt: skip
        self._append([committed, WeightsPublished(version=version, parent=batch.step, url="", digest="", bytes=0)])
        self.engines.publish(version)
        self._train()

    def _snapshot(self) -> None:
        self.clock.after(SNAPSHOT_S, self._snapshot)
        self.measures.snapshot(self.state)

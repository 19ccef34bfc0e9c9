"""Measure a cycle of the conductor at 65,536 open groups of two samples: fold one event, then decide.

The run is asynchronous, with groups of several weight versions. Between two cycles one sample ends, or gets its reward;
the cycles that seal a batch are counted apart, because they make an event of thousands of samples.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.figure import Better, Figure
from schemas.arrays import pack_tokens
from schemas.batches import BatchSealed
from schemas.codec import decode, encode
from schemas.envelope import enclose
from schemas.event import Event
from schemas.prompts import PromptSubmitted, Source
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, Sampling, StopReason, WeightSpan
from schemas.runs import RunStarted
from schemas.weights import WeightsActivated, WeightsPublished
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.decide import decide, evals_due, prompts_to_draw
from slime_events.loop.conductor.draw import requests_for, reused_rollouts_due
from slime_events.loop.conductor.plan import Plan
from slime_events.plugins.filters.decide import keep
from storage.log import Recorded

RUN = "bench"
GROUPS, SAMPLES, STEP = 65_536, 2, 4_096
CYCLES = 2_000
TARGET_MS = 5.0
SEED = 1
_PROMPT = pack_tokens(range(16))


class OpenRun:
    """A state, and the time of folding into it [s]."""

    def __init__(self, plan: Plan) -> None:
        self.state, self.plan, self.folding = RunState(run=RUN), plan, list[float]()

    def fold(self, event: Event) -> None:
        """Fold an event in as it comes from the log."""
        data = encode(enclose(RUN, event, at=self.state.events + 1, producer="bench"))
        envelope = decode(data)
        recorded = Recorded(self.state.events + 1, envelope.subject, envelope, data)
        begun = time.perf_counter()
        apply(self.state, recorded)
        self.folding.append(time.perf_counter() - begun)

    def cycle(self) -> list[Event]:
        """Return the conductor's decisions without new prompts, and with all else that a cycle asks of the state."""
        events = decide(self.state, self.plan, keep, lambda raw, sizes: list(raw))
        prompts_to_draw(self.state, self.plan)
        evals_due(self.state, self.plan)
        reused_rollouts_due(self.state)
        return events


def measure(groups: int = GROUPS, cycles: int = CYCLES) -> list[Figure]:
    """Return the time of a cycle, of folding an event, and of a cycle that seals a batch."""
    run = OpenRun(
        Plan(
            steps=10**6,
            groups=min(STEP, groups // 4),
            samples=SAMPLES,
            sampling=Sampling(max_new_tokens=8192),
            max_staleness=max(groups // STEP - 1, 3),
            verdicts_at_once=False,
            in_prompt_order=False,
        )
    )
    for event in _beginning(groups, run.plan):
        run.fold(event)
    run.cycle()
    run.folding.clear()
    cycle_s, seal_s = list[float](), list[float]()
    for event in _ends(run.state, random.Random(SEED)):
        run.fold(event)
        begun = time.perf_counter()
        decided = run.cycle()
        took = time.perf_counter() - begun
        (seal_s if any(isinstance(each, BatchSealed) for each in decided) else cycle_s).append(took)
        for each in decided:
            run.fold(each)
        if len(cycle_s) >= cycles and seal_s:
            break
    milliseconds = [1e3 * seconds for seconds in cycle_s]
    about = f"{groups:,} open groups"
    note = f"median {statistics.median(milliseconds):.3f} ms, {len(milliseconds)} cycles, of one event each"
    fold_us = 1e6 * statistics.fmean(run.folding)
    return [
        _lower(f"cycle, {about}, p99", statistics.quantiles(milliseconds, n=100)[-1], "ms", note, TARGET_MS),
        _lower(f"fold of an event, {about}", fold_us, "us", f"{len(run.folding):,} events, hash chain included"),
        _lower(f"cycle that seals a batch, {about}", 1e3 * max(seal_s), "ms", f"{run.plan.groups:,} groups a batch"),
    ]


def _lower(name: str, value: float, unit: str, note: str, target: float | None = None) -> Figure:
    return Figure(name=name, value=value, unit=unit, target=target, better=Better.LOWER, note=note)


def _beginning(groups: int, plan: Plan) -> Iterator[Event]:
    yield RunStarted(settings={}, code_version="")
    yield WeightsPublished(version=0, parent=None, url="", digest="w0", bytes=0)
    yield WeightsActivated(version=0, engine="engine", digest="w0", seconds=0.0)
    for number in range(groups):
        name = f"train-0-{number:07d}"
        yield PromptSubmitted(group=name, text="", tokens=_PROMPT, source=Source(path="p", offset=number))
        yield from requests_for(name, _PROMPT, plan, version=0, order=number)


def _ends(state: RunState, chance: random.Random) -> Iterator[Event]:
    """Yield the end and then the reward of each sample, in random order."""
    names = [(group.group, sample) for group in state.groups.values() for sample in group.samples]
    chance.shuffle(names)
    for group, sample in names:
        about: dict[str, Any] = {"sample": sample, "group": group}
        yield RolloutCompleted(
            **about, attempt=0, start=0, length=4, prompt_length=_PROMPT.n, stop=StopReason.STOP, text="",
            spans=(WeightSpan(0, 4, 0),), digest=sample, engine="engine",
        )  # fmt: skip
        yield RewardAssigned(**about, value=1.0, grader="exact", grader_digest="")

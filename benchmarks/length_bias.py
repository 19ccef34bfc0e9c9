"""Measure how the order of acceptance biases the lengths of trained responses.

Each order has a whole run with all real shells over the in-memory log, a scripted engine (`benchmarks.long_tail`), and
twice as many groups per draw as a step takes. The figure is the Kolmogorov-Smirnov distance between the lengths of all
requested samples and of the samples trained fresh, which is in the step of the weights that they were requested for.
Surplus groups are kept, so a whole run trains on everything; the order decides which groups wait. The last figure is
that of slime's rule on the same lengths: it trains on the groups of a draw that end first, and drops the others.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.figure import Better, Figure
from benchmarks.long_tail import LongTail, length_of
from schemas.batches import BatchSealed
from schemas.rollouts import RolloutRequested, Sampling
from serve_apps.rollouts.rollout import ChunkRule
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation, make_plan

MEDIAN, MOST = 20, 400
GROUPS, SAMPLES = 8, 4
DEADLINE_S = 300.0
SCRIPT = Script(chunk=4, seconds_per_chunk=0.004)


def measure(steps: int = 40) -> list[Figure]:
    """Return the KS distances of both orders and of slime's rule."""
    figures = []
    for order, in_order in (("prompt", True), ("completion", False)):
        run = _run(steps, in_order=in_order)
        note = (
            f"{len(run.fresh)} of {len(run.trained)} samples trained fresh, mean length {np.mean(run.fresh):.1f}, of "
            f"all {np.mean(run.requested):.1f}; over the whole run KS {ks_distance(run.trained, run.requested):.3f}"
        )
        figures.append(_figure(f"length bias, {order} order", ks_distance(run.fresh, run.requested), note))
    kept = fastest_of_each_draw(run.requested)
    note = f"{len(kept)} samples kept, mean length {np.mean(kept):.1f}; the slower half of each draw is dropped"
    return [*figures, _figure("length bias, slime's rule", ks_distance(kept, run.requested), note)]


def _figure(name: str, value: float, note: str) -> Figure:
    return Figure(name=name, value=value, unit="KS", better=Better.LOWER, note=note)


def ks_distance(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the largest difference of two empirical distribution functions."""
    points = np.unique(np.concatenate([first, second]))
    shares = [np.searchsorted(np.sort(values), points, side="right") / len(values) for values in (first, second)]
    return float(np.max(np.abs(shares[0] - shares[1])))


def fastest_of_each_draw(lengths: Sequence[int]) -> list[int]:
    """Return the lengths of the half of each draw whose longest sample ends first. A draw has groups of two steps."""
    drawn = 2 * GROUPS * SAMPLES
    draws = np.reshape(lengths[: len(lengths) // drawn * drawn], (-1, 2 * GROUPS, SAMPLES))
    kept = [draw[np.argsort(draw.max(axis=1), kind="stable")[:GROUPS]] for draw in draws]
    return [int(length) for length in np.concatenate(kept).ravel()]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Response lengths in tokens, in log order."""

    requested: list[int]
    trained: list[int]
    fresh: list[int]


def _run(steps: int, *, in_order: bool) -> Lengths:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_simulate(Path(folder), steps, in_order=in_order))


async def _simulate(folder: Path, steps: int, *, in_order: bool) -> Lengths:
    plan = make_plan(
        steps=steps,
        groups=GROUPS,
        samples=SAMPLES,
        draw=2 * GROUPS,
        in_prompt_order=in_order,
        sampling=Sampling(max_new_tokens=MOST),
    )
    prompts = [f"prompt {n}" for n in range(steps * GROUPS * 2)]
    async with Simulation(folder, plan, prompts=prompts, deadline_s=60.0) as sim:
        sim.start_engine(LongTail(SCRIPT, MEDIAN), room=1024, rule=ChunkRule(64, 100.0))
        await sim.finish(within_s=DEADLINE_S)
        requests = {event.sample: event for event in sim.events(RolloutRequested)}
        length = {sample: length_of(event.seed, MEDIAN, MOST) for sample, event in requests.items()}
        trained = [(sample, event.step) for event in sim.events(BatchSealed) for sample in event.samples]
    return Lengths(
        requested=list(length.values()),
        trained=[length[sample] for sample, _ in trained],
        fresh=[length[sample] for sample, step in trained if requests[sample].min_version == step],
    )

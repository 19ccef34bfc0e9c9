"""A learner dies at each of its appends, before it is stored or after, and comes to what it would have come to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.runs import RunFinished
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.loop.learner.overrides import Overrides
from storage.memory_log import MemoryLog
from tests.harness.history.checker import check
from tests.learner.learning import DEADLINE_S, Learning
from tests.scripted_engine import Script
from tests.simulation.crash import Crash, Fate, Half, MortalLine
from tests.simulation.parts import ScriptedRanks
from tests.simulation.simulation import Simulation, make_plan

STEPS = 3
SAID = (BatchSealed, StepCommitted, WeightsPublished, CheckpointSaved, RunFinished)


async def live(learning: Learning, fate: Fate) -> bool:
    """One life; whether it came to its end."""
    line = MortalLine(learning.log, role="learner", fate=fate)
    life = asyncio.create_task(learning.run(log=line, ranks=ScriptedRanks(disk=learning.ranks.disk)))
    death = asyncio.create_task(line.deaths.get())
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait({life, death}, return_when=asyncio.FIRST_COMPLETED)
    life.cancel()
    death.cancel()
    await asyncio.gather(life, death, return_exceptions=True)
    return not life.cancelled() and life.result() == STEPS


async def learn(parent: MemoryLog, folder: Path, crash: Crash | None) -> tuple[Learning, Fate]:
    dropped = next(r.envelope.event.samples[0] for r in parent.records if isinstance(r.envelope.event, BatchSealed))
    learning = Learning(parent, folder, Overrides(dropped=frozenset([dropped])), steps=STEPS, checkpoint_every=2)
    await learning.begin()
    fate = Fate([] if crash is None else [crash])
    while not await live(learning, fate):
        assert fate.exhausted
    return learning, fate


@pytest.mark.parametrize("half", list(Half))
async def test_whatever_append_it_dies_at(tmp_path: Path, half: Half) -> None:
    async with Simulation(tmp_path, make_plan(steps=STEPS)) as sim:
        sim.start_engine(Script(chunk=24))
        await sim.finish()
    whole, _ = await learn(sim.log, tmp_path / "whole", None)
    at = 0
    while True:
        at += 1
        learning, fate = await learn(sim.log, tmp_path / str(at), Crash(at, half))
        for kind in SAID[:2]:
            mine, theirs = learning.events(kind), whole.events(kind)
            assert [(e.step, getattr(e, "weights_digest", e)) for e in mine] == [
                (e.step, getattr(e, "weights_digest", e)) for e in theirs
            ], fate.died
        for kind in SAID[2:]:
            assert len(learning.events(kind)) == len(whole.events(kind)), fate.died
        raw, its = ([(r.position, r.subject, r.data) for r in log.records] for log in (learning.log, sim.log))
        assert not check(raw, parent=its), fate.died
        if not fate.died:
            break
    assert at > 2 * STEPS + 3, "every append was a death"

"""Strangers in a run that is on: before each append of anybody, foreign records where they disturb it most."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from slime_events.analysis.audit.audit import Audit, audit
from slime_events.analysis.audit.ledger import Rules
from slime_events.app.cli.render.audit_text import report_text
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.model.verify import verify
from storage.log import Append
from storage.memory_log import MemoryLog
from tests.harness.chaos.measures import weight_digests
from tests.harness.strangers.kinds import KINDS, Scene, Write, claim, make
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation, make_plan


class Haunted(MemoryLog):
    """A log in which a stranger is always first: on the subject of each append, and with its id."""

    def __init__(self, run: str, seed: int) -> None:
        super().__init__(run)
        self._chance = random.Random(seed)

    async def append(self, appends: Sequence[Append]) -> list[int]:
        for append in appends:
            envelope = append.envelope
            seen = self._chance.choice(self.records).envelope if self.records else envelope
            kind = self._chance.choice([kind for kind in KINDS if "large" not in kind])
            for write in (claim(envelope.subject, envelope), make(kind, Scene(seen, envelope, self._chance))):
                if self._chance.random() < 0.7:
                    self._leave(write)
        return await super().append(appends)

    def _leave(self, write: Write) -> None:
        self.publish(write.subject.decode(errors="backslashreplace"), write.data, write.message_id)


async def _run(folder: Path, log: MemoryLog) -> Simulation:
    folder.mkdir()
    plan = make_plan(checkpoint_every=2, eval_every=2, eval_names=("held",), eval_samples=2, eval_exact=True)
    sim = Simulation(folder, plan, evaluations={"held": ["one", "two"]}, log=log)
    async with sim:
        sim.start_engine(Script(chunk=8, seconds_per_chunk=0.002))
        sim.start_engine(Script(chunk=8, seconds_per_chunk=0.002))
        await sim.finish()
    return sim


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_run_with_strangers_trains_the_same_weights(seed: int, tmp_path: Path) -> None:
    alone = await _run(tmp_path / "alone", MemoryLog("sim"))
    haunted = await _run(tmp_path / "haunted", Haunted("sim", seed))
    assert len(haunted.log.foreign) > len(alone.log.records)
    digests = [weight_digests(record.envelope.event for record in sim.log.records) for sim in (alone, haunted)]
    assert digests[0] == digests[1]
    rules = Rules(haunted.plan, AlgorithmSettings())
    report = await audit(haunted.log.read_records(), Audit("sim", rules=rules, files=False))
    assert report.clean, report_text(report, 0)
    assert [record.position for record in report.foreign] == [record.position for record in haunted.log.foreign]
    assert (await verify(haunted.log)).steps == haunted.plan.steps

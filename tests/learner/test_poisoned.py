"""One prompt in a hundred comes from a second file, with a wrong label. Its samples are found, dropped and gone."""

from __future__ import annotations

import json
from pathlib import Path

from actors.archivist import archive_run
from schemas.steps import StepCommitted
from slime_events.analysis.lineage.resolve import samples_in_lineage
from slime_events.analysis.query import samples_where
from slime_events.core.run.run_reader import open_run
from slime_events.loop.learner.batches import preview
from slime_events.loop.learner.overrides import Overrides
from slime_events.plugins.sample import Sample
from storage.archive.writer import ArchiveWriter
from storage.memory_log import MemoryLog
from tests import made
from tests.learner.learning import Learning
from tests.scripted_engine import Script
from tests.simulation.parts import InstantPool, by_text
from tests.simulation.simulation import SAMPLING, Simulation, make_plan

STEPS, GROUPS, SAMPLES = 25, 8, 2
BY_SOURCE = """
    SELECT r.sample FROM samples r JOIN prompts p USING (group_id)
    WHERE p.metadata->>'$.file' = 'second.jsonl'
"""


def by_label(sample: Sample) -> float:
    """The answers are those to the right label."""
    return float(sample.label == "1" and by_text(sample) > 0.1)


async def archived(log: MemoryLog, folder: Path) -> str:
    """The log in an archive; what opens it."""
    await archive_run(log, ArchiveWriter(str(folder), log.run), "archivist")
    return f"{folder}/{log.run}"


async def poisoned(folder: Path) -> tuple[MemoryLog, set[str]]:
    """A run's log, and the samples whose prompts had the wrong label: the truth, from their sender."""
    lines = [
        {"key": f"k{n}", "prompt": f"second {n}", "label": "2", "metadata": {"file": "second.jsonl"}} for n in (1, 2)
    ]
    plan = make_plan(steps=STEPS, groups=GROUPS, samples=SAMPLES)
    wrong: list[str] = []
    async with Simulation(folder, plan, pool=InstantPool(by_label)) as sim:
        sim.start_engine(Script(chunk=SAMPLING.max_new_tokens))
        for line in lines:
            await sim.until(StepCommitted, 9 + len(wrong))
            wrong += (await sim.inbox.accept(json.dumps(line).encode())).groups
        await sim.finish()
    assert len(wrong) / (STEPS * GROUPS) == 0.01
    return sim.log, {f"{group}-s{index}" for group in wrong for index in range(SAMPLES)}


async def test_a_poisoned_source_is_found_dropped_and_gone_from_the_lineage(tmp_path: Path) -> None:
    log, truth = await poisoned(tmp_path)
    samples = set(await samples_where(made.opened(log, where="memory"), BY_SOURCE))
    assert samples == truth, "precision and recall of the query"
    learning = Learning(log, tmp_path / "second", Overrides(dropped=frozenset(samples)), steps=STEPS)
    outlook = await preview(log.read(), learning.batches())
    assert outlook.first is not None
    assert outlook.first > 0, "nothing before it is trained again"
    learning.version, learning.where = outlook.first, await archived(log, tmp_path / "archive")
    await learning.begin()
    await learning.run()
    async with open_run(learning.where) as parent:
        before = await samples_in_lineage(parent, STEPS)
    async with open_run(await archived(learning.log, tmp_path / "archive")) as branch:
        after = await samples_in_lineage(branch, STEPS)
    gone = before - after
    assert len(gone & truth) / len(gone) == 1.0, "precision: nothing else is gone"
    assert len(gone & truth) / len(truth) == 1.0, "recall: all of it is"
    assert after < before
    assert [batch.step for batch in learning.ranks.trained] == list(range(outlook.first, STEPS))
    assert not truth & {sample.sample for batch in learning.ranks.trained for sample in batch.samples}

"""Half a run at a time, by the real launcher: rollouts without a trainer, then training on them without engines."""

from __future__ import annotations

from pathlib import Path

from schemas.batches import BatchSealed
from schemas.rollouts import RolloutCompleted
from schemas.steps import StepCommitted
from schemas.workers import WorkerJoined
from slime_events.analysis.audit.audit import Audit, audit
from slime_events.app.cli.render.audit_text import report_text
from slime_events.core.run.run_reader import open_run
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import GROUPS, SAMPLES, of, run_with, tiny


async def test_rollouts_alone_then_training_alone(tmp_path: Path) -> None:
    template = str(tmp_path / "dumps" / "{rollout_id}.pt")
    alone = tiny(tmp_path, "rollouts", debug={"debug_rollout_only": True, "save_debug_rollout_data": template})
    trained = tiny(tmp_path, "training", debug={"load_debug_rollout_data": template}, reward={"rm_type": None})
    parts = Parts()
    with cheap_parts(parts):
        await run_with(alone)
        assert parts.ranks.step == 0
        await run_with(trained)
    assert parts.ranks.step == 3
    logs = {}
    for name in ("rollouts", "training"):
        async with open_run(name, tmp_path / "runs") as opened:
            logs[name] = [recorded async for recorded in opened.log.read()]
            report = await audit(opened.log.read(), Audit(opened.run, fetch=opened.fetch, files=False))
            assert report.clean, report_text(report, 0)
    generated, loaded = (of(logs[name], RolloutCompleted) for name in ("rollouts", "training"))
    assert len(generated) >= len(loaded) == 3 * GROUPS * SAMPLES
    assert [batch.raw_rewards for batch in of(logs["rollouts"], BatchSealed)] == [
        batch.raw_rewards for batch in of(logs["training"], BatchSealed)
    ]
    assert {event.role for event in of(logs["rollouts"], WorkerJoined)} == {
        *("conductor", "inbox", "grader", "trainer", "engine", "archivist", "dumper")
    }
    assert {event.role for event in of(logs["training"], WorkerJoined)} == {
        *("conductor", "inbox", "trainer", "loader", "archivist")
    }
    assert len({event.weights_digest for event in of(logs["rollouts"], StepCommitted)}) == 1
    assert len({event.weights_digest for event in of(logs["training"], StepCommitted)}) == 3

"""`show` of a run that has ended: how its agents' sessions ended, from its log and from its archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.arrays import unpack
from slime_events.app.cli.commands.show import Question, View, view_of
from slime_events.core.state.run import RunPhase
from storage.archive.log import ArchivedLog
from storage.archive.reader import ArchiveReader
from storage.log import Readable
from tests import made
from tests.agents.stage import Stage, seal
from tests.agents.test_sessions import two_turns
from tests.scripted_engine import Script

WHY = "the agent's session is not trained on: its program ended with exit code 3: no such tool"


async def ended(stage: Stage) -> dict[str, Any]:
    """A run whose first session failed; that session."""
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine(Script(chunk=4))
        failed = await stage.open(client)
        await two_turns(client, failed)
        await seal(client, failed, exit_code=3, metadata={"error": "no such tool"})
        for _ in range(stage.plan.steps * stage.plan.samples):
            session = await stage.open(client)
            await two_turns(client, session)
            await seal(client, session, reward=1.0)
        assert await stage.simulation.finish() is RunPhase.FINISHED
    return failed


async def shown(log: Readable, **fields: Any) -> View:
    return await view_of(log, Question(**fields), unpack)


@pytest.mark.parametrize("is_archived", [False, True])
async def test_sessions_of_a_run_that_has_ended(tmp_path: Path, is_archived: bool) -> None:
    stage = Stage(tmp_path)
    failed = await ended(stage)
    log: Readable = stage.simulation.log
    if is_archived:
        made.archived(tmp_path / "archive", stage.simulation.log.records, closed=False)
        log = ArchivedLog(ArchiveReader(str(tmp_path / "archive"), "sim"), "sim")
    run = await shown(log)
    assert run.facts["agents"]["sessions"] == []
    assert run.facts["agents"]["ended"]["sealed"] == {"exit": 1, "reward": 4}
    assert run.facts["agents"]["ended"]["failures"] == [{"session": failed["session"], "reason": WHY}]
    assert "5 sessions sealed by reward 4, exit 1" in run.text
    assert f"{failed['session']}: {WHY}" in run.text

    group = await shown(log, group=failed["group"])
    by_name = {fact["session"]: fact for fact in group.facts["sessions"]}
    assert len(by_name) == 3
    assert (by_name[failed["session"]]["exit_code"], by_name[failed["session"]]["failure"]) == (3, WHY)
    assert f"exit code 3, failed: {WHY}" in group.text

    sample = await shown(log, sample=failed["session"])
    assert sample.facts["sample"] == failed["sample"]
    assert [fact["failure"] for fact in sample.facts["sessions"]] == [WHY, None]
    assert [len(fact["turns"]) for fact in sample.facts["sessions"]] == [2, 2]
    assert f"failed: {WHY}" in sample.text
    assert sample.text.count(f"{failed['sample']}.1") == 1 + 2, "each turn says which session it is of"

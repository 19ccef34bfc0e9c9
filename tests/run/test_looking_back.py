"""A finished run looked back on: its lineage both ways, from its log and its archive, and one rollout once more."""

from __future__ import annotations

import json

import msgspec
import pytest

from schemas.groups import GroupRejected
from schemas.rollouts import RolloutCompleted
from slime_events.analysis.lineage.lineage import Kind, Lineage, LineageQuery
from slime_events.analysis.lineage.resolve import NEWEST, lineage, samples_in_lineage
from slime_events.app.cli.main import main
from slime_events.core.run.run_reader import open_run
from tests.run.whole import STEPS, Finished

pytestmark = pytest.mark.real


async def _of(where: str, kind: Kind, value: str, depth: int = 1) -> Lineage:
    async with open_run(where) as opened:
        return await lineage(opened, LineageQuery(kind=kind, value=value, depth=depth))


async def test_lineage_both_ways_from_log_and_archive(finished: Finished) -> None:
    where, archive = str(finished.folder), str(finished.folder / "archive" / "whole")
    whole = await _of(where, Kind.VERSION, NEWEST, depth=0)
    assert [step.step for step in whole.steps] == list(reversed(range(STEPS)))
    archived = await _of(archive, Kind.VERSION, NEWEST, depth=0)
    assert msgspec.structs.replace(archived, runs=whole.runs) == whole
    sample = whole.samples[-1]
    assert (await _of(archive, Kind.SAMPLE, sample.sample)).samples == (sample,)
    async with open_run(archive) as opened:
        trained = await samples_in_lineage(opened, STEPS)
    assert trained == {sample.sample for sample in whole.samples}
    refused = [event.envelope.event for event in finished.events]
    assert not trained & {name for event in refused if isinstance(event, GroupRejected) for name in event.samples}


def test_a_rollout_comes_once_more_bit_for_bit(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    completed = [e.envelope.event for e in finished.events if isinstance(e.envelope.event, RolloutCompleted)]
    longest = max(completed, key=lambda event: (event.length, event.sample))
    code = main(["replay-rollout", str(finished.folder), longest.sample, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert (code, answer["equal"], answer["divergence"], answer["max_difference"]) == (0, True, None, 0.0)
    assert answer["tokens"] == longest.length

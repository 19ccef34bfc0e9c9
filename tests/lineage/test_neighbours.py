"""Test the descendants of a version or a sample in the runs beside its own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from schemas.event import Event
from slime_events.analysis.lineage.lineage import Kind, Lineage, LineageQuery, Sample
from slime_events.analysis.lineage.resolve import lineage
from slime_events.app.cli.render.lineage_text import lineage_text
from slime_events.core.run.run_reader import open_run
from slime_events.model.ancestry import VersionRange
from tests import made
from tests.cli.small_run import BATCHES, RUN
from tests.lineage.long import batch_events, step_events
from tests.lineage.opened import archived_parent, branch

OWN = "train-1-000001"


def _archive(folder: Path, run: str, log_events: list[Event]) -> None:
    made.archived(folder, made.recorded(*log_events, run=run))


@pytest.fixture
async def where(tmp_path: Path) -> str:
    """The small run of two steps, a branch of its version 1 and one of that, a learner from version 0, one run that is
    of another's weights, and two things that are none of these.
    """
    parent = await archived_parent(tmp_path)
    _archive(tmp_path, "child", [*branch(parent, version=1, position=9), *step_events(1, OWN)])
    of_child = [_of(event, "child", digest="w2") for event in branch("child", version=2, position=9)]
    _archive(tmp_path, "grandchild", [*of_child, *step_events(2, OWN), *step_events(3, "train-1-000002")])
    learns = [*branch(parent, version=0, position=4, follows=True), *batch_events(0, BATCHES[0][0])]
    _archive(tmp_path, "learner", [*learns, *batch_events(1, BATCHES[1][0])])
    other = [_of(event, RUN, digest="another") for event in branch(parent, version=1, position=9)]
    _archive(tmp_path, "stranger", [*other, *step_events(1, OWN)])
    (tmp_path / "empty").mkdir()
    return parent


def _of(event: Event, run: str, *, digest: str) -> Event:
    branched = getattr(event, "branched", None)
    if branched is None:
        return msgspec.structs.replace(event, digest=digest)
    return msgspec.structs.replace(event, branched=msgspec.structs.replace(branched, run=run, weights_digest=digest))


async def _lineage(where: str, kind: Kind, value: object) -> Lineage:
    async with open_run(where) as run:
        return await lineage(run, LineageQuery(kind=kind, value=str(value)))


async def test_what_comes_of_a_version_in_other_runs(where: str) -> None:
    first, last = await _lineage(where, Kind.VERSION, 1), await _lineage(where, Kind.VERSION, 2)
    assert first.descendants == (
        VersionRange(run=RUN, first=2, last=2),
        VersionRange(run="child", first=2, last=2),
        VersionRange(run="grandchild", first=3, last=4),
    )
    assert last.descendants == ()
    assert [(run.run, run.parent, run.version) for run in first.branches] == [
        ("child", RUN, 1),
        ("learner", RUN, 0),
        ("grandchild", "child", 2),
    ]
    assert len(first.notes) == 1
    assert "empty may be a branch, but cannot be read" in first.notes[0]
    text = lineage_text(first)
    assert "descendants  v2 of small, v2 of child, v3 to v4 of grandchild" in text
    assert "learner is trained on the rollouts of small at v0" in text


async def test_what_comes_of_a_sample_in_other_runs(where: str) -> None:
    async def of(group: str) -> Sample:
        (sample,) = (await _lineage(where, Kind.SAMPLE, f"{group}-s0")).samples
        return sample

    trained = (await of(BATCHES[0][0])).descendants
    assert [(descendant.run, descendant.first) for descendant in trained] == [
        (RUN, 2), ("child", 2), ("learner", 1), ("grandchild", 3)
    ]  # fmt: skip
    later = (await of(BATCHES[1][0])).descendants
    assert [(descendant.run, descendant.first) for descendant in later] == [("learner", 2)], (
        "the branch continues from before it"
    )
    dropped = (await of(BATCHES[1][-1])).descendants
    assert not dropped or BATCHES[1][-1] == BATCHES[1][0]

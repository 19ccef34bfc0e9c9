"""Lineage across the joins of branches, and of a run that is trained on another's rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import RunNotFound
from slime_events.analysis.lineage.lineage import Kind, Lineage, LineageQuery
from slime_events.analysis.lineage.picture import svg
from slime_events.analysis.lineage.resolve import lineage, samples_in_lineage
from slime_events.app.cli.render.lineage_text import lineage_text
from slime_events.core.run.run_reader import OpenedRun
from slime_events.model.ancestry import VersionRange
from storage.memory_log import MemoryLog
from tests.cli import small_run
from tests.cli.small_run import BATCHES, RUN
from tests.lineage.long import batch_events, step_events
from tests.lineage.opened import archived_parent, branch, opened

FIRST, SECOND = ({f"{group}-s{index}" for group in groups for index in range(2)} for groups in BATCHES)
OWN = "train-1-000001"


async def _join(version: int) -> int:
    """The position in the small run's log at which a version is published."""
    log: MemoryLog = await small_run.small_run()
    published = await log.last(f"slime.{RUN}.weights.published.{version}")
    assert published is not None
    return published.position


@pytest.fixture
async def branched(tmp_path: Path) -> OpenedRun:
    """From version 1, with one own step."""
    where = await archived_parent(tmp_path)
    return await opened([*branch(where, version=1, position=await _join(1)), *step_events(1, OWN)], "child")


async def _of(run: OpenedRun, kind: Kind, value: object, depth: int = 1) -> Lineage:
    return await lineage(run, LineageQuery(kind=kind, value=str(value), depth=depth))


async def test_a_version_of_a_branch_leads_into_its_parent(branched: OpenedRun) -> None:
    answer = await _of(branched, Kind.VERSION, 2, depth=0)
    assert [(step.step, step.run) for step in answer.steps] == [(1, "child"), (0, RUN)]
    assert [(version.version, version.run) for version in answer.versions] == [(2, "child"), (1, RUN), (0, RUN)]
    assert answer.line == (VersionRange(run=RUN, first=0, last=1), VersionRange(run="child", first=2, last=2))
    assert {sample.sample for sample in answer.samples} == FIRST | {f"{OWN}-s0"}
    assert [(run.run, run.parent, run.version) for run in answer.runs] == [(RUN, None, None), ("child", RUN, 1)]


async def test_a_parents_sample_descends_into_the_branch(branched: OpenedRun) -> None:
    (sample,) = (await _of(branched, Kind.SAMPLE, "train-0-000000-s1")).samples
    assert (sample.run, sample.step, sample.trained_into) == (RUN, 0, 1)
    assert sample.descendants == (VersionRange(run="child", first=2, last=2),)


async def test_what_the_parent_did_afterwards_is_no_past_of_the_branch(branched: OpenedRun) -> None:
    assert await samples_in_lineage(branched, 2) == FIRST | {f"{OWN}-s0"}
    with pytest.raises(RunNotFound, match="no group 'inbox-aa'"):
        await _of(branched, Kind.SAMPLE, "inbox-aa-s0")
    assert not [
        group for group in (await _of(branched, Kind.SOURCE, "train.jsonl")).groups if group.group in BATCHES[1]
    ]


async def test_a_parent_is_opened_only_to_look_into_it(tmp_path: Path) -> None:
    log_events = [*branch(f"{tmp_path}/gone/{RUN}", version=1, position=9), *step_events(1, OWN)]
    run = await opened(log_events, "child")
    answer = await _of(run, Kind.STEP, 1)
    assert answer.steps[0].run == "child"
    assert answer.line[0] == VersionRange(run=RUN, first=0, last=1)
    with pytest.raises(RunNotFound, match=r"branched off from version 1 of run small, which was at .*gone/small"):
        await _of(run, Kind.VERSION, 1)


async def test_a_learner_is_trained_on_its_parents_rollouts(tmp_path: Path) -> None:
    where = await archived_parent(tmp_path)
    group = BATCHES[1][0]
    log_events = [*branch(where, version=1, position=await _join(1), follows=True), *batch_events(1, group)]
    run = await opened(log_events, "learner")
    answer = await _of(run, Kind.VERSION, 2)
    assert [(step.run, step.samples) for step in answer.steps] == [("learner", (f"{group}-s0",))]
    assert [(sample.run, sample.made_by, sample.trained_into) for sample in answer.samples] == [(RUN, (1,), 2)]
    assert [(each.group, each.run, each.step) for each in answer.groups] == [(group, RUN, 1)]
    (sample,) = (await _of(run, Kind.SAMPLE, f"{group}-s0")).samples
    assert sample == answer.samples[0]
    (left,) = (await _of(run, Kind.SAMPLE, f"{BATCHES[1][1]}-s0")).samples
    assert left.trained_into is None
    assert [
        (version.run, version.version, version.digest)
        for version in (await _of(run, Kind.SAMPLE, f"{group}-s0")).versions
    ] == [
        ("learner", 2, "w2"),
        (RUN, 1, "d1"),
    ]
    assert await samples_in_lineage(run, 2) == FIRST | {f"{group}-s0"}
    sourced = await _of(run, Kind.SOURCE, "inbox:k1")
    assert [(each.group, each.step) for each in sourced.groups] == [(group, 1)]


async def test_versions_of_a_run_that_is_followed_are_not_the_learners_own(tmp_path: Path) -> None:
    """From version 0 on it has its own weights, and the second batch's tokens are still by the parent's."""
    where = await archived_parent(tmp_path)
    begins = branch(where, version=0, position=await _join(0), follows=True)
    run = await opened([*begins, *batch_events(0, BATCHES[0][0]), *batch_events(1, BATCHES[1][0])], "learner")
    answer = await _of(run, Kind.SAMPLE, f"{BATCHES[1][0]}-s0")
    assert answer.samples[0].made_by == (1,)
    assert [(version.run, version.version, version.digest) for version in answer.versions] == [
        ("learner", 2, "w2"),
        (RUN, 1, "d1"),
    ]
    assert not answer.on_line(RUN, 1)
    assert "v1 of small, 3 tokens" in lineage_text(answer)
    assert "v1 of small" in lineage_text(await _of(run, Kind.VERSION, 2))
    assert "generated its tokens" not in svg(answer)

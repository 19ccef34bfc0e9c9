"""A look-up gives the records that a fold of the whole log gives, and reads no more than it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.batches import BatchSealed
from schemas.errors import RunNotFound
from slime_events.model import Group, Run, read_run
from slime_events.model.lookup import Lookup
from storage.archive.log import ArchivedLog
from storage.archive.reader import ArchiveReader
from storage.log import Readable
from tests.cli.small_run import BATCHES, RUN, small_run
from tests.generate.scene import a_run
from tests.lineage.long import Counting, batch_events, long_run
from tests.lineage.opened import archived_parent, branch, opened


async def _compare(log: Readable) -> Run:
    """Every record of the log, looked up one by one."""
    whole = await read_run(log)
    for name, sample in whole.samples.items():
        lookup = Lookup(log)
        assert await lookup.sample(name) == sample
        assert _without_members(lookup.run.groups[sample.group]) == _without_members(whole.groups[sample.group])
        step = whole.groups[sample.group].step
        assert lookup.run.version_of_step(step) == whole.version_of_step(step)
    for name, group in whole.groups.items():
        group_at = await Lookup(log).group(name)
        assert group_at.members == group.members
        assert _without_members(group_at) == _without_members(group)
    for number, step_record in whole.steps.items():
        assert await Lookup(log).step(number) == step_record
    for number, version in whole.versions.items():
        lookup = Lookup(log)
        assert await lookup.version(number) == version
        assert lookup.run.evals == [done for done in whole.evals if done.event.version == number]
    return whole


def _without_members(group: Group) -> tuple[object, ...]:
    """`order` counts all groups of a run: a look-up does not know it."""
    return group.group, group.prompt, group.verdict, group.step


async def test_every_record_of_a_run() -> None:
    whole = await _compare(await small_run())
    assert (len(whole.samples), len(whole.steps), len(whole.versions)) == (10, 2, 3)


async def test_every_record_of_an_archive(tmp_path: Path) -> None:
    url, _, _ = (await archived_parent(tmp_path)).rpartition("/")
    await _compare(ArchivedLog(ArchiveReader(url, RUN), RUN))


@pytest.mark.parametrize("function", ["two_turns", "fan_out"])
async def test_rollouts_with_turns_and_several_samples(tmp_path: Path, function: str) -> None:
    run = a_run(tmp_path, function)
    await run.run()
    await _compare(run.log)


async def test_a_long_log_is_not_read_for_it() -> None:
    counting = Counting((await long_run(200)).log)
    for step in (0, 77, 199):
        counting.looks = 0
        lookup = Lookup(counting)
        sample = await lookup.sample(f"train-0-{step:06d}-s0")
        assert (sample.value, lookup.run.version_of_step(lookup.run.groups[sample.group].step)) == (1.0, step + 1)
        assert counting.looks < 25
        assert sum(isinstance(record.sealed.event, BatchSealed) for record in lookup.run.steps.values()) == 1


async def test_a_group_of_another_run_has_the_step_that_trained_it(tmp_path: Path) -> None:
    where = await archived_parent(tmp_path)
    group = BATCHES[1][0]
    learner = await opened([*branch(where, version=1, position=9, follows=True), *batch_events(1, group)], "learner")
    lookup = Lookup(learner.log)
    record = await lookup.group(group[:-1])
    assert (record.group, record.prompt, record.members, record.step) == (group, None, [], 1)
    assert lookup.run.version_of_step(record.step) == 2


@pytest.mark.parametrize("name", ["train-0-000000-s*", "no id", "", "train-0-000000-s>"])
async def test_what_cannot_be_an_id_is_not_found(name: str) -> None:
    with pytest.raises(RunNotFound):
        await Lookup(await small_run()).sample(name)

"""The prompts of a recorded run, chosen by pass rate and by a query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.errors import DataError, RunNotFound
from schemas.recalled import CommonVersion
from slime_events.config.data import DataSettings
from slime_events.data.archived import archived_prompts
from storage.archive import ArchiveWriter
from tests.cli.small_run import GROUPS, REJECTED, RUN, small_run


@pytest.fixture
async def archive(tmp_path: Path) -> str:
    """Four groups with one right answer of two, and one with none, which was rejected."""
    writer = ArchiveWriter(str(tmp_path), RUN)
    for recorded in (await small_run()).records:
        writer.add(recorded)
    writer.seal()
    return f"{tmp_path}/{RUN}"


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        ({}, GROUPS),
        ({"archive_max_pass_rate": 0.2}, (REJECTED,)),
        ({"archive_min_pass_rate": 0.2, "archive_max_pass_rate": 0.8}, tuple(g for g in GROUPS if g != REJECTED)),
        ({"pass_reward": 0.0, "archive_min_pass_rate": 1.0}, GROUPS),
        ({"archive_where": "SELECT group_id FROM groups WHERE verdict = 'rejected'"}, (REJECTED,)),
    ],
)
async def test_who_may_be_drawn(archive: str, settings: dict[str, Any], groups: tuple[str, ...]) -> None:
    found = await archived_prompts(DataSettings(archive_prompts=archive, **settings))
    assert found is not None
    assert found.path.endswith(f"/{RUN}")
    assert [found.rows[row].groups for row in found.eligible] == [[group] for group in groups]
    assert [row.groups for row in found.rows] == [[group] for group in GROUPS], "the rest keep their places"
    assert set(found.rates()) == set(found.eligible)


async def test_each_group_with_its_recorded_rollouts_is_a_row(archive: str) -> None:
    data = DataSettings(archive_prompts=archive, archive_reuse="rollouts", archive_max_staleness=3)
    found = await archived_prompts(data, samples=2, ahead=1)
    assert found is not None
    assert found.rollouts is not None
    assert [row.groups for row in found.rows] == [[group] for group in GROUPS]
    common = CommonVersion(10, 0)
    numbers = {GROUPS[row]: group.number(common) for row, group in found.rollouts.groups.items()}
    assert numbers == {group: 10 - (group not in GROUPS[:3]) for group in GROUPS}
    assert [GROUPS[row] for row in found.rollouts.in_time(11, common)] == list(GROUPS)
    assert [GROUPS[row] for row in found.rollouts.in_time(12, common)] == list(GROUPS[:3])
    first = found.rollouts.recalled(0, GROUPS[0], common)
    assert (first.samples, first.oldest, first.bound) == ((f"{GROUPS[0]}-s0", f"{GROUPS[0]}-s1"), 10, 3)


async def test_nobody_left_and_no_archive(archive: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"of its 5 prompts none has a pass rate from 0\.9 to 1"):
        await archived_prompts(DataSettings(archive_prompts=archive, archive_min_pass_rate=0.9))
    with pytest.raises(RunNotFound):
        await archived_prompts(DataSettings(archive_prompts=f"{tmp_path}/nowhere"))
    assert await archived_prompts(DataSettings()) is None

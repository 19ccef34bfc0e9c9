"""`samples_where`: the samples that a query chooses."""

from __future__ import annotations

import pytest

from schemas.errors import BadQuery
from slime_events.analysis.query import samples_where
from tests.cli.small_run import GROUPS, REJECTED
from tests.lineage.opened import small


async def test_samples_in_the_order_of_the_query_each_once() -> None:
    opened = await small()
    chosen = "SELECT sample FROM rewards WHERE reward = 1 ORDER BY sample DESC"
    samples = await samples_where(opened, f"({chosen}) UNION ALL ({chosen})")
    assert samples == sorted((f"{group}-s1" for group in GROUPS if group != REJECTED), reverse=True)


@pytest.mark.parametrize("column", ["group_id", 'group_id AS "group"'])
async def test_a_group_stands_for_all_its_samples(column: str) -> None:
    opened = await small()
    samples = await samples_where(opened, f"SELECT {column} FROM groups WHERE verdict = 'rejected'; -- of the filter")
    assert samples == [f"{REJECTED}-s0", f"{REJECTED}-s1"]


async def test_other_columns_choose_nothing() -> None:
    opened = await small()
    with pytest.raises(BadQuery, match=r"has columns step, reward_mean. .* needs `sample` or `group_id`"):
        await samples_where(opened, "SELECT step, reward_mean FROM steps")

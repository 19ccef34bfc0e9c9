"""Samples that a query chooses: for dropping, or for drawing again."""

from __future__ import annotations

from pathlib import Path

from schemas.errors import BadQuery
from schemas.ids import place_of
from slime_events.core.run.run_reader import OpenedRun

_SAMPLE, _GROUP = "sample", ("group_id", "group")
_SAMPLES = 'SELECT "group", sample FROM log.rollout_requested UNION SELECT "group", sample FROM log.rollout_completed'


async def samples_where(
    opened: OpenedRun, sql: str, *, with_parent: bool = False, cache: Path | None = None
) -> list[str]:
    """Ids of the samples that a query chooses, each once, in the query's order.

    Its result has a column `sample`, or else `group_id` (or `group`), which stands for all samples of the group. Rows
    where that is null are passed over. with_parent, cache: as `tables_of`. Raises BadQuery, and as the log does.
    """
    from slime_events.analysis.query.run_tables import tables_of  # DuckDB takes a second to import

    async with tables_of(opened, with_parent=with_parent, cache=cache) as tables:
        chosen = await tables.sql(sql)
        if _SAMPLE in chosen.columns:
            return _ids(chosen.relation.project('"sample"').fetchall())
        group = next((name for name in _GROUP if name in chosen.columns), None)
        if group is None:
            raise BadQuery(
                f"the query gives {', '.join(chosen.columns)}: to choose samples it needs a column `sample` or "
                "`group_id`"
            )
        groups = _ids(chosen.relation.project(f'"{group}"').fetchall())
        return _samples_of(groups, (await tables.sql(_SAMPLES)).rows())


def _samples_of(groups: list[str], samples: list[tuple[str, str]]) -> list[str]:
    """All samples of these groups, group by group. samples: (group, sample) of every group that there is."""
    found: dict[str, list[str]] = {group: [] for group in groups}
    for group, sample in samples:
        if group in found:
            found[group].append(sample)
    return [sample for group in groups for sample in sorted(found[group], key=place_of)]


def _ids(rows: list[tuple[str | None, ...]]) -> list[str]:
    return list(dict.fromkeys(str(row[0]) for row in rows if row[0] is not None))

"""Every example of docs/querying.md is answered."""

from __future__ import annotations

import re
from pathlib import Path

from schemas.errors import BadQuery
from slime_events.analysis.query import tables_of
from tests.lineage.opened import small

PAGE = Path(__file__).parents[2] / "docs" / "querying.md"
EXAMPLES = re.findall(r"### ([^\n]+)\n(?:(?!###).)*?```sql\n(.*?)```\n\n```\n(.*?)\n```", PAGE.read_text(), re.DOTALL)


async def test_every_example_is_answered_with_the_columns_that_the_page_shows(tmp_path: Path) -> None:
    assert len(EXAMPLES) == PAGE.read_text().count("```sql") >= 10
    async with tables_of(await small(), cache=tmp_path) as tables:
        for title, sql, shown in EXAMPLES:
            try:
                answer = await tables.sql(sql)
                answer.rows()
            except BadQuery as error:
                raise AssertionError(f"{title}: {error}") from error
            assert answer.columns == shown.splitlines()[0].split(), title

"""Generate docs/tables.md from the tables: `python -m tools.tables_page > docs/tables.md`."""

import sys
from collections.abc import Iterator

from slime_events.analysis.query.table import Table
from slime_events.analysis.query.tables import TABLES

_HEAD = """# Tables

The tables of [`slime-events query`](querying.md), generated from `slime_events/analysis/query/tables/`:
`python -m tools.tables_page > docs/tables.md`.

Times are UTC and lengths count tokens. A map's value is `metrics['loss']`, a JSON value's field is
`metadata->>'name'`, a list's first element `versions[1]`. `group` is an SQL keyword, so a group's id is `group_id`.

These tables are views over event tables in the schema `log`: one for each type of event, with its dot as `_`
(`log.rollout_completed`, `log.worker_joined`) and the fields of [events.md](events.md). A struct's fields are
columns (`source_path`), an array is shown by its length. `position`, `time` and `producer` come from the envelope.
"""


def tables_page() -> str:
    """Return the whole page."""
    lines = [_HEAD]
    for table in TABLES:
        lines += _described(table)
    return "\n".join(lines).rstrip() + "\n"


def _described(table: Table) -> Iterator[str]:
    yield from (f"## {table.name}", "", table.description, "", "| column | type | description |", "|---|---|---|")
    for column in table.columns:
        description = column.description.replace("|", "\\|")
        yield f"| `{column.name}` | `{column.type}` | {description} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(tables_page())

"""docs/tables.md, made from the tables: `python -m tools.tables_page > docs/tables.md`."""

import sys
from collections.abc import Iterator

from slime_events.analysis.query.table import Table
from slime_events.analysis.query.tables import TABLES

_HEAD = """# Tables

What [`slime-events query`](querying.md) asks. It is made from `slime_events/analysis/query/tables/`:
`python -m tools.tables_page > docs/tables.md`.

Times are UTC, lengths count tokens, seconds are seconds. A map's value is `metrics['loss']`, a JSON value's field is
`metadata->>'name'`, a list's first element `versions[1]`. `group` is a word of SQL, so a group's id is `group_id`.

These tables are views over event tables in the schema `log`: one for each type of event, with its dot as `_`
(`log.rollout_completed`, `log.worker_joined`) and the fields of [events.md](events.md). A struct's fields are
columns (`source_path`), an array is how many numbers it has. `position`, `time` and `producer` come from the envelope.
"""


def tables_page() -> str:
    """The whole page."""
    lines = [_HEAD]
    for table in TABLES:
        lines += _described(table)
    return "\n".join(lines).rstrip() + "\n"


def _described(table: Table) -> Iterator[str]:
    yield from (f"## {table.name}", "", table.description, "", "| column | type | is |", "|---|---|---|")
    for column in table.columns:
        description = column.description.replace("|", "\\|")
        yield f"| `{column.name}` | `{column.type}` | {description} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(tables_page())

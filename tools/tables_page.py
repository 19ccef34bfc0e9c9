"""Generate docs/tables.md from the tables: `python -m tools.tables_page > docs/tables.md`."""

from collections.abc import Iterator, Sequence

from slime_events.analysis.query.detectors import DETECTORS
from slime_events.analysis.query.detectors.detector import Detector
from slime_events.analysis.query.table import Column, Table
from slime_events.analysis.query.tables import TABLES
from tools.page_command import print_page

_HEAD = """# Tables

The tables of [`slime-events query`](querying.md), generated from `slime_events/analysis/query/tables/`:
`python -m tools.tables_page > docs/tables.md`.

Times are UTC and lengths count tokens. A map's value is `metrics['loss']`, a JSON value's field is
`metadata->>'name'`, a list's first element `versions[1]`. `group` is an SQL keyword, so a group's id is `group_id`.

These tables are views over event tables in the schema `log`: one for each type of event, with its dot as `_`
(`log.rollout_completed`, `log.worker_joined`) and the fields of [events.md](events.md). A struct's fields are
columns (`source_path`), an array is shown by its length. `position`, `time` and `producer` come from the envelope.
"""


_DETECTORS = """# Detectors

The views of [`slime-events inspect`](inspecting.md). Each row is a finding. Give thresholds in the brackets:
`FROM length_pays(min_correlation := 0.2)`.
"""


def tables_page() -> str:
    """Return the whole page."""
    lines = [_HEAD]
    for table in TABLES:
        lines += _described(table)
    lines.append(_DETECTORS)
    for detector in DETECTORS:
        lines += _detector(detector)
    return "\n".join(lines).rstrip() + "\n"


def _described(table: Table) -> Iterator[str]:
    yield from (f"## {table.name}", "", table.description, "")
    yield from _columns(table.columns)


def _detector(detector: Detector) -> Iterator[str]:
    yield from (f"## {detector.name}", "", f"{detector.finds} Severity: {detector.severity}.", "")
    yield from ("| parameter | default | description |", "|---|---|---|")
    for parameter in detector.parameters:
        yield f"| `{parameter.name}` | {parameter.default:g} | {parameter.description} |"
    yield ""
    yield from _columns(detector.columns)


def _columns(columns: Sequence[Column]) -> Iterator[str]:
    yield from ("| column | type | description |", "|---|---|---|")
    for column in columns:
        description = column.description.replace("|", "\\|")
        yield f"| `{column.name}` | `{column.type}` | {description} |"
    yield ""


if __name__ == "__main__":
    print_page(__doc__, tables_page)

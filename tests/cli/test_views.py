"""Views: every field of their structs, and of the structs in these, has its text; nothing of the CLI is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from slime_events.analysis.audit.report import Report
from slime_events.analysis.compare.comparison import Comparison
from slime_events.analysis.lineage.lineage import Lineage
from slime_events.analysis.timetravel.moment_diff import MomentDiff
from slime_events.analysis.timetravel.moment_view import MomentView
from slime_events.analysis.views.group import GroupView
from slime_events.analysis.views.run import RunView
from slime_events.analysis.views.sample import SampleView
from slime_events.analysis.views.step import StepView
from slime_events.analysis.views.version import VersionView
from slime_events.analysis.what_if.prediction import WhatIf

VIEWS = (
    *(RunView, StepView, GroupView, SampleView, VersionView, MomentView, MomentDiff, Lineage, Report, Comparison),
    WhatIf,
)


def _records(kind: Any) -> Iterator[type]:
    """Structs and named tuples in a type."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    generic = get_origin(kind)
    if isinstance(generic or kind, type) and (
        issubclass(generic or kind, msgspec.Struct) or hasattr(generic or kind, "_fields")
    ):
        yield generic or kind
    for part in get_args(kind):
        yield from _records(part)


def _reachable() -> list[type]:
    reached: dict[type, None] = {}
    left: list[type] = list(VIEWS)
    while left:
        record = left.pop()
        if record not in reached:
            reached[record] = None
            left += [inner for kind in get_type_hints(record, include_extras=True).values() for inner in _records(kind)]
    return sorted(reached, key=lambda record: (record.__module__, record.__name__))


@pytest.mark.parametrize("record", _reachable(), ids=lambda record: record.__name__)
def test_every_field_has_its_text(record: type) -> None:
    hints = get_type_hints(record, include_extras=True)
    fields = getattr(record, "__struct_fields__", getattr(record, "_fields", ()))
    texts = {
        name: [getattr(meta, "description", None) for meta in getattr(hints[name], "__metadata__", ())]
        for name in fields
    }
    assert [name for name in fields if not any(texts[name])] == []


def test_the_parts_of_a_view_are_reached() -> None:
    names = {record.__name__ for record in _reachable()}
    assert {
        "Change",
        "Counts",
        "OpenRollout",
        "EndedSessions",
        "AgentTurn",
        "Finding",
        "Foreign",
        "VersionRange",
    } <= names


def test_views_are_read_and_written_without_the_cli() -> None:
    """Servers below `slime_events.app` read views and serialize them."""
    code = """
import sys
import slime_events.analysis.audit.read
import slime_events.analysis.compare.compare
import slime_events.analysis.lineage.resolve
import slime_events.analysis.timetravel.read_moment
import slime_events.analysis.views.read_records
import slime_events.analysis.views.read_run
import slime_events.analysis.what_if.what_if
import slime_events.model.json_values
assert not [name for name in sys.modules if name.startswith("slime_events.app")], sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)

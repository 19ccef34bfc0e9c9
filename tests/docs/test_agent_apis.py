"""Test that docs/agent-apis.md states the effect of every field of the dialects."""

from __future__ import annotations

from tests.docs.pages import DOCS
from tools.agent_apis_page import TABLES, document

PAGE = (DOCS / "agent-apis.md").read_text(encoding="utf-8")


def test_the_tables_are_up_to_date() -> None:
    assert document(PAGE) == PAGE, "python -m tools.agent_apis_page docs/agent-apis.md"


def test_every_field_that_is_not_simple_says_why() -> None:
    silent = [(title, name) for title, table in TABLES.items() for name, field in table.items() if not field.note]
    assert [field for field in silent if TABLES[field[0]][field[1]].use.value not in ("works", "the run's")] == []

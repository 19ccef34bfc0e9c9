"""A finished run asked by SQL: from its folder, which is archive and log, and from the archive alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.rollouts import RolloutCompleted
from slime_events.analysis.query import open_tables
from tests.run.whole import STEPS, Finished

pytestmark = pytest.mark.real


def _rows(where: Path, sql: str, cache: Path) -> list[tuple[Any, ...]]:
    with open_tables(str(where), cache=cache) as tables:
        return tables.sql(sql).rows()


def test_folder_and_archive_answer_the_same(finished: Finished, tmp_path: Path) -> None:
    completed = [
        record.envelope.event for record in finished.events if isinstance(record.envelope.event, RolloutCompleted)
    ]
    total = "SELECT count(*), max(step) FROM samples WHERE status = 'completed'"
    tokens = "SELECT count(*), sum(token), min(log_prob) FROM tokens"
    for sql, expected in ((total, (len(completed), STEPS - 1)), (tokens, None)):
        (by_folder,) = _rows(finished.folder, sql, tmp_path / "folder")
        (by_archive,) = _rows(finished.folder / "archive" / "whole", sql, tmp_path / "archive")
        assert by_folder == by_archive == (expected or by_archive)
    assert by_folder[0] == sum(event.length for event in completed)

"""docs/guarantees.md names a test for each promise: they are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "guarantees.md").read_text())


@pytest.mark.parametrize(("file", "test"), NAMED, ids=[test for _, test in NAMED])
def test_a_named_test_is_there(file: str, test: str) -> None:
    assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file} has no {test}"


def test_every_promise_names_one() -> None:
    rows = [line for line in (ROOT / "docs" / "guarantees.md").read_text().splitlines() if line.startswith("| **")]
    assert len(rows) > 10
    assert all("::" in row for row in rows)

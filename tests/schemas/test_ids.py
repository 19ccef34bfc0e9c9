"""Ids: written as they have always been, and parsed back. Nobody else writes or parses them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schemas import ids

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("built", "as_recorded"),
    [
        (ids.group_id(ids.TRAIN, 0, 7), "train-0-000007"),
        (ids.group_id(ids.LOADED, 2, 1), "loaded-2-000001"),
        (ids.inbox_group_id("key"), "inbox-ce7cccadc3a94cf5"),
        (ids.bad_line_id("train", 1, 12), "train-1-line12"),
        (ids.draw_id(7, again=False), "draw-000007"),
        (ids.draw_id(7, again=True), "again-000007"),
        (ids.evaluation_id("held", 7), "held-v7"),
        (ids.evaluation_group_id("held", 7, 3), "eval-held-v7-000003"),
        (ids.sample_id("train-0-000007", 3), "train-0-000007-s3"),
        (ids.sibling_id("train-0-000007-s3", 0), "train-0-000007-s3"),
        (ids.sibling_id("train-0-000007-s3", 2), "train-0-000007-s3-2"),
    ],
)
def test_as_it_is_recorded(built: str, as_recorded: str) -> None:
    assert built == as_recorded


@pytest.mark.parametrize("group", ["train-0-000007", "eval-a-s3-v7-000003"])
@pytest.mark.parametrize("number", [0, 2])
def test_a_sample_is_parsed_back(group: str, number: int) -> None:
    requested = ids.sample_id(group, 12)
    sample = ids.sibling_id(requested, number)
    assert (ids.group_of(sample), ids.order_in_group(sample), ids.requested_sample(sample)) == (
        group,
        (12, number),
        requested,
    )


def test_a_group_belongs_to_one_evaluation() -> None:
    group = ids.evaluation_group_id("held", 7, 3)
    others = [("held", 70), ("held", 1), ("hel", 7), ("held-v7", 0)]
    assert ids.is_of_evaluation(group, "held", 7)
    assert not any(ids.is_of_evaluation(group, *other) for other in others)


def test_nobody_else_writes_or_parses_them() -> None:
    by_hand = re.compile(r"""-s\{|"-s"|'-s'|-line\{|"(?:eval|inbox|draw|again|loaded|train)-\{|\}-v\{""")
    paths = [
        path for room in ("schemas", "slime_events", "actors", "serve_apps") for path in (ROOT / room).rglob("*.py")
    ]
    paths_ = {str(path.relative_to(ROOT)) for path in paths if by_hand.search(path.read_text(encoding="utf-8"))}
    assert paths_ == {"schemas/ids.py"}

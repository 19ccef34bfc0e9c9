"""The table of layouts, and all of them on gloo ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.layouts.combinations import COMBINATIONS, FURTHER, VARIATIONS, Combination
from tests.harness.layouts.comparison import LIMIT, Bench, Comparison, job_of
from tests.harness.layouts.report import MARK, between_marks, document, table, with_table
from tests.megatron.two_processes import RankPair

DOCS = Path(__file__).parents[3] / "docs" / "models.md"


def test_a_row_has_figures_or_a_reason() -> None:
    combination = Combination("qwen3", tp=2, sp=True, dp=2)
    rows = [
        Comparison(combination, loss=1e-7, repeats=True),
        Comparison(combination, "set it to 1", refused=True),
        Comparison(combination, "a process ended"),
        Comparison(combination, gradient=2 * LIMIT, repeats=True),
        Comparison(combination),
    ]
    assert [row.is_good for row in rows] == [True, True, False, False, False]
    lines = table(rows).splitlines()[2:]
    assert lines[0].startswith("| qwen3 | TP 2, SP, DP 2 | 4 | 1.0e-07 |")
    assert "| refused: set it to 1 |" in lines[1]
    assert "| failed: a process ended |" in lines[2]
    assert {line.count(" | ") for line in lines} == {7}


def test_a_table_of_variations_names_them() -> None:
    (name,) = [name for name in VARIATIONS if "critic" in name]
    row = Comparison(Combination("qwen3", tp=2, variation=name), repeats=True)
    assert f"| TP 2 | {name} | 2 |" in table([row])
    assert job_of(row.combination)["algorithm"] == VARIATIONS[name].algorithm


def test_a_page_gets_a_new_table_between_its_marks() -> None:
    page = f"before\n{with_table('', MARK, 'old')}after\n"
    new = document(page, [Comparison(Combination("qwen3", tp=2), repeats=True)])
    assert new.startswith("before\n<")
    assert new.endswith(">\nafter\n")
    assert "old" not in new
    assert "| qwen3 | TP 2 |" in between_marks(new, MARK)
    assert document(new, []).count(MARK) == 2


def test_the_page_has_a_row_for_each_layout() -> None:
    page = between_marks(DOCS.read_text(encoding="utf-8"), MARK)
    for combination in COMBINATIONS:
        assert f"| {combination.family} | {combination.title} |" in page, "python -m tests.harness.layouts --write"
    assert "failed" not in page


@pytest.mark.soak
def test_all_layouts_train_as_one_rank_does(tmp_path: Path) -> None:
    every = (*COMBINATIONS, *FURTHER)
    (tmp_path / "logs").mkdir()
    with RankPair(tmp_path / "logs", max(combination.ranks for combination in every)) as pair:
        bench = Bench(tmp_path, pair)
        assert [row for row in map(bench.compare, every) if not row.is_good] == []

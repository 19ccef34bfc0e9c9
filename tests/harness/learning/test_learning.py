"""Faults that the comparison notices, and the shortest of the runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from schemas.trainers import Fidelity, TrainerRestored
from slime_events.app.cli.commands.demo import with_flags
from slime_events.app.demo.settings import demo_settings
from tests.harness.chaos.schedule import Kind
from tests.harness.layouts.combinations import Combination
from tests.harness.layouts.report import with_table
from tests.harness.learning.__main__ import chosen
from tests.harness.learning.commands import CASES, LearningRun, layout_flags
from tests.harness.learning.measured import Measured, equal_steps, log_prob_difference, norm_difference
from tests.harness.learning.report import HEAD, MARK, ONE_RANK, rows_of, table
from tests.harness.learning.verdict import Verdict

DOCS = Path(__file__).parents[3] / "docs" / "models.md"
Responses = Mapping[str, tuple[Sequence[int], Sequence[float]]]
RESTORED = TrainerRestored(version=4, trainer="t", checkpoint=3, optimizer=Fidelity.EXACT)
FIRST: Responses = {"a": ([1, 2, 3], [-1.0, -1.0, -1.0]), "b": ([4], [-2.0])}
SECOND: Responses = {"c": ([5, 6], [-1.0, -3.0])}


def measured(*responses: Responses, norms: Sequence[float] = (1.0, 2.0)) -> Measured:
    """A run that learned."""
    arrays = [
        {name: (np.array(tokens, np.int32), np.array(log_probs, np.float32)) for name, (tokens, log_probs) in r.items()}
        for r in responses or (FIRST, SECOND)
    ]
    return Measured([0.4, 0.8], [0.6, 0.9], norms, 1e-6, arrays, ["trainer"], [RESTORED])


def verdict(run: Measured, killed: str = "rank, version 4", audit: str = "", failures: Sequence[str] = ()) -> Verdict:
    commands = {"audit": audit, "replay": "", "retrain": ""}
    return Verdict(Combination("qwen3", pp=2), run, measured(), killed, 60.0, commands, failures)


def test_figures_are_compared_where_tokens_are_equal() -> None:
    alone = measured()
    same = measured(norms=(1.0, 2.0 + 2e-6))
    assert (equal_steps(same, alone), log_prob_difference(same, alone)) == (2, 0.0)
    assert norm_difference(same, alone) == pytest.approx(1e-6)
    other = measured(FIRST, {"c": ([5, 7], [-1.25, -9.0])}, norms=(1.0, 7.0))
    assert (equal_steps(other, alone), norm_difference(other, alone)) == (1, 0.0)
    assert log_prob_difference(other, alone) == 0.25, "up to the token that differs"
    apart = measured({"a": ([9], [-5.0])}, SECOND)
    assert (equal_steps(apart, alone), norm_difference(apart, alone)) == (0, float("inf"))


def test_whatever_is_wrong_is_named() -> None:
    good = measured()
    assert verdict(good).wrong == []
    approximate = TrainerRestored(version=4, trainer="t", checkpoint=3, optimizer=Fidelity.APPROXIMATE)
    wrong = [
        verdict(replace(good, held_out=[0.6, 0.61])),
        verdict(replace(good, held_out=[0.6, 0.75])),
        verdict(measured({"a": ([9], [-5.0])}, SECOND)),
        verdict(measured(norms=(1.0, 2.1))),
        verdict(measured(FIRST, {"c": ([5, 6], [-1.0, -3.1])})),
        verdict(replace(good, agreement=0.1)),
        verdict(replace(good, lost=["trainer", "engine"])),
        verdict(replace(good, restored=[approximate])),
        verdict(replace(good, restored=[])),
        verdict(good, killed=""),
        verdict(good, audit="a finding"),
        verdict(good, failures=["left behind"]),
    ]
    assert all(row.wrong for row in wrong)
    assert [len(row.wrong) for row in wrong[3:]] == [1] * 9


def test_a_page_keeps_the_rows_that_were_not_run_again() -> None:
    old = table([Verdict(Combination("qwen3"), measured(), measured(), "trainer, version 4", 1.0, {})])
    page = f"before\n{with_table('', MARK, old)}after\n"
    rows = rows_of(with_table(page, MARK, table([verdict(measured(), audit="a finding")], page)))
    assert list(rows) == [("qwen3", ONE_RANK), ("qwen3", "PP 2")]
    assert {len(cells) for cells in rows.values()} == {len(HEAD)}
    assert rows["qwen3", "PP 2"][-1] == "failed: audit"
    assert "| 1 rank | 1 |" in table([], page)


def test_a_layout_has_flags_of_the_command_line(tmp_path: Path) -> None:
    assert layout_flags(Combination("qwen3")) == []
    for case in CASES:
        flags = ["--actor-num-gpus-per-node", str(case.ranks), *layout_flags(case)]
        trainer = with_flags(demo_settings(tmp_path), flags).settings.trainer
        assert {name: getattr(trainer, name) for name in case.settings} == case.settings
    assert [LearningRun(case, tmp_path).strikes()[0].kind for case in CASES[:2]] == [Kind.TRAINER, Kind.RANK]
    assert [case.title for case in chosen(["qwen3", "CP"])] == ["", "CP 2"]


def test_the_page_has_a_row_for_each_case() -> None:
    rows = rows_of(DOCS.read_text(encoding="utf-8"))
    assert list(rows) == [(case.family, case.title or ONE_RANK) for case in CASES]
    assert {cells[-1] for cells in rows.values()} == {"clean"}


@pytest.mark.soak
@pytest.mark.real
def test_context_parallel_ranks_learn_as_one_rank_does(tmp_path: Path) -> None:
    """In a process of its own, which ends all processes that descend from it."""
    program = [sys.executable, "-m", "tests.harness.learning", "--only", "CP 2", "--steps", "4"]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr

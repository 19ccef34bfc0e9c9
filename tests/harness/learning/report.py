"""Verdicts as a markdown table, in which a page keeps the rows that were not run again."""

from __future__ import annotations

from collections.abc import Sequence

from tests.harness.layouts.report import between_marks
from tests.harness.learning.commands import CASES
from tests.harness.learning.measured import equal_steps
from tests.harness.learning.verdict import Verdict

MARK = "tests.harness.learning"
HEAD = (
    "model",
    "layout",
    "ranks",
    "training reward",
    "held-out score",
    "steps with equal tokens",
    "gradient norm",
    "log-probs",
    "engine and trainer",
    "kill -9",
    "seconds",
    "audit, replay, retrain",
)
ONE_RANK = "1 rank"


def table(verdicts: Sequence[Verdict], page: str = "") -> str:
    """Return the table. page: text whose table gives the rows of other cases."""
    rows = rows_of(page) | {tuple(cells[:2]): cells for cells in map(_cells, verdicts)}
    order = [(case.family, case.title or ONE_RANK) for case in CASES]
    lines = [list(HEAD), ["---"] * len(HEAD), *(rows[key] for key in order if key in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rows_of(page: str) -> dict[tuple[str, ...], list[str]]:
    """Return the cells of the rows on a page, by model and layout."""
    rows = [line.strip("| ").split(" | ") for line in between_marks(page, MARK).splitlines() if line.startswith("|")]
    return {tuple(cells[:2]): cells for cells in rows[2:]}


def _cells(verdict: Verdict) -> list[str]:
    combination, run, alone = verdict.combination, verdict.run, verdict.alone
    is_alone = combination.ranks == 1
    failed = [name for name, text in verdict.commands.items() if text]
    return [
        combination.family,
        combination.title or ONE_RANK,
        str(combination.ranks),
        f"{run.rewards[0]:.2f} -> {run.rewards[-1]:.2f}",
        f"{run.held_out[0]:.2f} -> {run.held_out[-1]:.2f}",
        "" if is_alone else f"{equal_steps(run, alone)} of {len(run.norms)}",
        "" if is_alone else f"{verdict.norm:.1e}",
        "" if is_alone else f"{verdict.log_probs:.1e}",
        f"{run.agreement:.1e}",
        verdict.killed,
        f"{verdict.seconds:.0f}",
        f"failed: {', '.join(failed)}" if failed else "clean",
    ]

"""`python -m tests.harness.learning`: train small models on the demo's task in several layouts, with real engines.

In each run one rank is killed half-way. Prints a table: rewards, differences from the one-rank run of the same model,
and whether audit, replay and retrain are clean. --write PAGE puts its rows into a page (docs/models.md). Ends with 1 if
a run did not learn as its one-rank run did. Minutes for each run.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.harness.layouts.combinations import Combination
from tests.harness.layouts.report import with_table
from tests.harness.learning.commands import CASES, STEPS, LearningRun
from tests.harness.learning.measured import Measured
from tests.harness.learning.models import model_folder
from tests.harness.learning.report import MARK, ONE_RANK, table
from tests.harness.learning.trial import try_it
from tests.harness.learning.verdict import Verdict

STOPPED = 143
CACHE = Path(tempfile.gettempdir()) / "slime-events-learning"
"""Models that were taught before."""


def chosen(only: Sequence[str]) -> list[Combination]:
    """Return the cases whose model and layout have all texts, and the one-rank run of each of their models."""
    named = [case for case in CASES if all(text in f"{case.family} {case.title or ONE_RANK}" for text in only)]
    families = {case.family for case in named}
    return [case for case in CASES if case in named or (case.ranks == 1 and case.family in families)]


def compare(cases: Sequence[Combination], steps: int, folder: Path) -> list[Verdict]:
    """Run the cases one after the other, and return a verdict on each."""
    alone: dict[str, Measured] = {}
    verdicts = list[Verdict]()
    for case in cases:
        run = LearningRun(case, model_folder(case.family, CACHE), steps)
        tried = try_it(run, folder / f"{case.family}-{(case.title or ONE_RANK).replace(', ', '-').replace(' ', '')}")
        verdicts.append(tried.beside(alone.setdefault(case.family, tried.measured)))
        print(table(verdicts[-1:]).splitlines()[-1], *verdicts[-1].wrong, sep="\n", file=sys.stderr, flush=True)
    return verdicts


def main() -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.learning", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="cases whose title has all texts")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"training steps of each run [{STEPS}]")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page whose table gets the rows")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="new folder that keeps the runs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # so that a run is ended with this
    with tempfile.TemporaryDirectory(prefix="slime-learning-") as name:
        verdicts = compare(chosen(options.only), options.steps, options.keep or Path(name))
    print(table(verdicts), end="")
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        options.write.write_text(with_table(page, MARK, table(verdicts, page)), encoding="utf-8")
    return int(any(verdict.wrong for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())

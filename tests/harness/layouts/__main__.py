"""`python -m tests.harness.layouts`: train small models in each layout, and compare each with one rank.

Prints a table of the largest differences in float32. --write PAGE puts it into a page (docs/models.md). Ends with 1 if
a difference is more than rounding.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.harness.layouts.combinations import COMBINATIONS, FURTHER
from tests.harness.layouts.comparison import Bench, Comparison
from tests.harness.layouts.report import document, table
from tests.megatron.two_processes import RankPair


def main() -> int:
    """Compare, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.layouts", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="combinations whose title has all texts")
    parser.add_argument("--further", action="store_true", help="layouts with other settings, such as recompute")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page whose table is replaced")
    options = parser.parse_args()
    chosen = [
        combination
        for combination in (FURTHER if options.further else COMBINATIONS)
        if all(text in f"{combination.family} {combination.title} {combination.variation}" for text in options.only)
    ]
    rows = list[Comparison]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        with RankPair(folder / "logs", max(combination.ranks for combination in chosen)) as pair:
            bench = Bench(folder, pair)
            for combination in chosen:
                rows.append(bench.compare(combination))
                print(table(rows[-1:]).splitlines()[-1], rows[-1].worst, file=sys.stderr, flush=True)
    print(table(rows), end="")
    if options.write:
        options.write.write_text(document(options.write.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

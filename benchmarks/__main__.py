"""`python -m benchmarks [--only NAME ...] [--long] [--markdown] [--json FILE] [--write-baseline]`: measure all figures.

`python -m benchmarks --against REV [--only NAME ...]`: compare some figures with those of another commit.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks import baseline
from benchmarks.against import compare
from benchmarks.figure import Row
from benchmarks.registry import LONG, NAMES, chosen, measure
from benchmarks.table import markdown, text
from schemas.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="measure the system's performance")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"some of: {', '.join(NAMES)}")
    parser.add_argument(
        "--long", action="store_true", help=f"{', '.join(LONG)} and SmolLM2-135M against TRL too (an hour)"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file as well")
    parser.add_argument("--write-baseline", action="store_true", help="write the figures to benchmarks/baselines/ too")
    parser.add_argument(
        "--against", metavar="REV", help=f"compare with another commit, in turns: {', '.join(compare.NAMES)}"
    )
    parser.add_argument("--turns", type=int, default=2, help="with --against: turns of each commit (2)")
    parser.add_argument("--tolerance", type=float, default=0.05, help="with --against: allowed slowdown (0.05)")
    options = parser.parse_args(argv)
    names = NAMES if options.against is None else compare.NAMES
    if unknown := [name for name in options.only or () if name not in names]:
        parser.error(f"--only: there is no {', '.join(unknown)}; choose from {', '.join(names)}")
    if options.turns < 1:
        parser.error("--turns: give 1 or more")
    if options.against is not None and options.write_baseline:
        parser.error("--against and --write-baseline exclude each other")
    if options.against is not None:
        try:
            return compare.compare(options.against, options.only or compare.NAMES, options.turns, options.tolerance)
        except ConfigError as error:
            parser.error(str(error))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # If a tokenizer is loaded before torch, transformers never uses torch; later benchmarks need both.
    importlib.import_module("torch")
    rows: list[Row] = []
    try:
        for name in chosen(options.only, long=options.long):
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows += measure(name, long=options.long)
    finally:  # print the figures measured before a benchmark fails
        print(markdown(rows) if options.markdown else text(rows))
        if options.json:
            options.json.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2))
        if options.write_baseline:
            _write_baseline(rows)
    return int(any(row.figure.met is False for row in rows))


def _write_baseline(rows: Sequence[Row]) -> None:
    omitted = baseline.write(rows, baseline.this_machine(), baseline.this_commit())
    if omitted:
        print(f"not written, because a figure has no value: {', '.join(omitted)}", file=sys.stderr)
    print("next: python -m tools.benchmarks_page docs/benchmarks.md", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

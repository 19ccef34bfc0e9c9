"""`slime-events rescore`: another reward, filter or advantage over the rollouts that a run has made."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from slime_events.analysis.rescore.change import make_change
from slime_events.analysis.rescore.report import Report, report_text
from slime_events.analysis.rescore.rescore import rescore
from slime_events.app.cli.out_file import new_file
from slime_events.app.cli.render.text import json_text
from slime_events.app.cli.run_argument import RunParser
from slime_events.core.run.run_reader import open_run

EPILOG = """\
Any of the run's own flags that say how rollouts are graded, filtered and turned into advantages:
  --rm-type, --custom-rm-path, --reward-key, ...     another reward; rollouts are graded again
  --dynamic-sampling-filter-path                     another filter
  --advantage-estimator, --gamma, --normalize-advantages,
  --disable-rewards-normalization, --disable-grpo-std-normalization
What is not given is as it was. With none at all everything is graded and decided again as it was.
"""


def main(argv: Sequence[str] = ()) -> int:
    """Print the report. Errors are raised."""
    said, flags = _parser().parse_known_args(argv)
    begun = time.perf_counter()
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(new_file(said.out)) if said.out else None
        report = asyncio.run(_rescore(said, flags, out))
    seconds = time.perf_counter() - begun
    if said.json:
        facts = msgspec.to_builtins(report)
        facts |= {"first_difference": report.first_difference, "same": report.is_same, "seconds": seconds}
        sys.stdout.write(json_text(facts))
        return 0
    sys.stdout.write(report_text(report) + "\n")
    if said.out:
        next_ = f"slime-events retrain {said.run} --branch NAME --changes {said.out}"
        sys.stdout.write(f"\nwritten to {said.out}: `{next_}` trains on it\n")
    rate = report.samples.graded / max(seconds, 1e-9)
    sys.stderr.write(f"{report.samples.graded:,} rollouts in {seconds:.1f} s ({rate:,.0f} a second)\n")
    return 0


async def _rescore(said: argparse.Namespace, flags: Sequence[str], out: IO[bytes] | None) -> Report:
    async with open_run(said.run, said.runs_dir) as opened:
        return await rescore(opened, make_change(opened.settings, flags), out, most=said.most)


def _parser() -> argparse.ArgumentParser:
    parser = RunParser(
        prog="slime-events rescore",
        description=__doc__,
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="slime-events rescore RUN [--out FILE] [--json] [the run's flags]",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write what would differ as a changes file (JSON lines)"
    )
    parser.add_argument("--most", type=int, default=5, metavar="N", help="examples shown of each kind [5]")
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    return parser

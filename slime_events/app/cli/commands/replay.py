"""`slime-events replay`: the decisions of a run, made again. Exit code 0 where all are the same, 1 where one is not."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

from slime_events.analysis.replay.replay import replay
from slime_events.analysis.replay.report import ReplayReport
from slime_events.app.cli.commands.resume import with_flags
from slime_events.app.cli.render.replay_text import report_text, verdict
from slime_events.app.cli.render.text import json_text
from slime_events.app.cli.run_argument import RunParser
from slime_events.app.launch.run_record import Changes, changes
from slime_events.core.run.run_reader import OpenedRun, open_run


def main(argv: Sequence[str] = ()) -> int:
    """Print the report. Errors are raised."""
    said, flags = _parser().parse_known_args(argv)
    begun = time.perf_counter()
    report = asyncio.run(_replay(said, flags))
    seconds = time.perf_counter() - begun
    if said.json:
        facts = report.json_values() | {"seconds": seconds}
        sys.stdout.write(json_text(facts))
    else:
        sys.stdout.write(f"{report_text(report, said.most, every=said.all)}\n\n")
        sys.stdout.write(f"{verdict(report)} ({report.events:,} events in {seconds:.1f} s)\n")
    return 0 if report.is_equal else 1


async def _replay(said: argparse.Namespace, flags: Sequence[str]) -> ReplayReport:
    async with open_run(said.run, said.runs_dir) as opened:
        return await replay(opened, _changes(opened, flags), every=said.all, recorded_prompts=said.recorded_prompts)


def _changes(opened: OpenedRun, flags: Sequence[str]) -> Changes:
    """What the flags change in the run's settings, derived settings included."""
    return changes(opened.settings, with_flags(opened.settings, flags).settings) if flags else {}


def _parser() -> argparse.ArgumentParser:
    parser = RunParser(
        prog="slime-events replay",
        description=__doc__,
        usage="slime-events replay RUN [--all] [--most N] [--json] [--recorded-prompts] [settings flags]",
        epilog="Settings flags, as slime-events train takes them, are decided by in place of the run's own: "
        "--dynamic-sampling-filter-path mine.py:keep, --over-sampling-batch-size 32, --advantage-estimator gspo, ...",
        allow_abbrev=False,
    )
    parser.add_argument("--all", action="store_true", help="go on after the first difference, given what was recorded")
    parser.add_argument("--most", type=int, default=20, metavar="N", help="verdicts shown with --all, 0 for all [20]")
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    parser.add_argument(
        "--recorded-prompts", action="store_true", help="take prompts out of the log, even where their files are there"
    )
    return parser

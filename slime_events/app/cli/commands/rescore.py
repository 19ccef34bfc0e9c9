"""`slime-events rescore`: another reward, filter or advantage over the rollouts that a run has made."""

import argparse
import asyncio
import contextlib
import sys
import time
from typing import IO

import msgspec

from slime_events.analysis.rescore.change import make_change
from slime_events.analysis.rescore.report import Report, report_text
from slime_events.analysis.rescore.rescore import rescore
from slime_events.app.cli.files import new_file
from slime_events.app.cli.render.text import json_text
from slime_events.core.run.run_reader import open_run


def run(arguments: argparse.Namespace) -> int:
    """Print the report. Errors are raised."""
    begun = time.perf_counter()
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(new_file(arguments.out)) if arguments.out else None
        report = asyncio.run(_rescore(arguments, out))
    seconds = time.perf_counter() - begun
    if arguments.json:
        facts = msgspec.to_builtins(report)
        facts |= {"first_difference": report.first_difference, "same": report.is_same, "seconds": seconds}
        sys.stdout.write(json_text(facts))
        return 0
    sys.stdout.write(report_text(report) + "\n")
    if arguments.out:
        next_ = f"slime-events retrain {arguments.run} --branch NAME --changes {arguments.out}"
        sys.stdout.write(f"\nwritten to {arguments.out}: `{next_}` trains on it\n")
    rate = report.samples.graded / max(seconds, 1e-9)
    sys.stderr.write(f"{report.samples.graded:,} rollouts in {seconds:.1f} s ({rate:,.0f} a second)\n")
    return 0


async def _rescore(arguments: argparse.Namespace, out: IO[bytes] | None) -> Report:
    async with open_run(arguments.run, arguments.runs_dir) as opened:
        return await rescore(opened, make_change(opened.settings, arguments.flags), out, most=arguments.most)

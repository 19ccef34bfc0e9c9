"""`slime-events rescore`: apply another reward, filter or advantage estimator to a run's recorded rollouts."""

import argparse
import contextlib
import sys
import time

import msgspec

from slime_events.analysis.rescore.change import make_change
from slime_events.analysis.rescore.report import report_text
from slime_events.analysis.rescore.rescore import rescore
from slime_events.app.cli.files import new_file
from slime_events.app.cli.render.text import json_text
from slime_events.core.config.reach import check_reach
from slime_events.core.run.run_reader import open_run


async def run(arguments: argparse.Namespace) -> int:
    """Print the report, and write the differences to --out."""
    begun = time.perf_counter()
    with new_file(arguments.out) if arguments.out else contextlib.nullcontext() as out:
        async with open_run(arguments.run, arguments.runs_dir) as opened:
            check_reach(opened.settings, "rollout", "reward", "algorithm", flags=arguments.flags)
            report = await rescore(opened, make_change(opened.settings, arguments.flags), out, most=arguments.most)
    seconds = time.perf_counter() - begun
    if arguments.json:
        facts = msgspec.to_builtins(report)
        facts |= {"first_difference": report.first_difference, "same": report.is_same, "seconds": seconds}
        sys.stdout.write(json_text(facts))
        return 0
    print(report_text(report))
    if arguments.out:
        next_ = f"slime-events retrain {arguments.run} --branch NAME --changes {arguments.out}"
        print(f"\nwrote the changes to {arguments.out}; to train on them: `{next_}`")
    rate = report.samples.graded / max(seconds, 1e-9)
    sys.stderr.write(f"{report.samples.graded:,} rollouts in {seconds:.1f} s ({rate:,.0f} a second)\n")
    return 0

"""`slime-events compare`: the first difference of two runs. Exit code 0 if they are equal, else 1."""

import argparse
import sys

from slime_events.analysis.compare.compare import compare
from slime_events.app.cli.render.compare_text import compare_text
from slime_events.app.cli.render.text import json_text
from slime_events.core.run.run_reader import open_run
from slime_events.model.json_values import plain


async def run(arguments: argparse.Namespace) -> int:
    """Print the comparison; return 1 if anything differs."""
    runs_dir = arguments.runs_dir
    async with open_run(arguments.run, runs_dir) as opened, open_run(arguments.other, runs_dir) as other:
        comparison = await compare(opened, other)
    if arguments.json:
        sys.stdout.write(json_text(plain(comparison)))
    else:
        print(compare_text(comparison))
    return 0 if comparison.first is None else 1

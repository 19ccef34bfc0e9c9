"""`slime-events what-if`: predict a recorded run under other settings."""

import argparse
import sys

from slime_events.analysis.what_if.what_if import what_if
from slime_events.app.cli.render.text import json_text
from slime_events.app.cli.render.what_if_text import what_if_text
from slime_events.core.run.run_reader import open_run
from slime_events.model.json_values import plain

VARIED = (
    "max_staleness",
    "over_sampling_batch_size",
    "accept_order",
    "rollout_batch_size",
    "update_weights_interval",
    "rollout_num_engines",
    "rm_workers",
    "chunk_tokens",
)


async def run(arguments: argparse.Namespace) -> int:
    """Print the predictions."""
    values = {name: getattr(arguments, name) for name in VARIED}
    async with open_run(arguments.run, arguments.runs_dir) as opened:
        predicted = await what_if(opened, values, arguments.seed)
    if arguments.json:
        sys.stdout.write(json_text(plain(predicted)))
    else:
        print(what_if_text(predicted))
    return 0

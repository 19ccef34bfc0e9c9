"""`slime-events retrain`: train steps of a run again from its log and compare them with the committed steps."""

import argparse
import functools
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from actors.offline.retrain_run import RetrainRequest, Save, retrain
from schemas.errors import ImpossibleCombination
from slime_events.analysis.retrain.report import report_text, step_text
from slime_events.app.cli.render.text import json_text
from slime_events.app.launch.branch_checkpoint import trainable
from slime_events.app.launch.run_announcement import environment
from slime_events.core.config.reach import check_reach
from slime_events.core.run.run_reader import open_run
from slime_events.loop.training.difference import Retrained


async def run(arguments: argparse.Namespace) -> int:
    """Train, print each step and the report; return 1 if a digest differs."""
    begun = time.perf_counter()
    if (arguments.save_version is None) != (arguments.out is None):
        raise ImpossibleCombination("--save-version V and --out FOLDER need each other: give both or neither")

    def show(step: Retrained) -> None:
        if not arguments.json:
            print(step_text(step), flush=True)

    note = functools.partial(print, file=sys.stderr, flush=True)
    request = RetrainRequest(
        steps=arguments.steps,
        from_base=arguments.from_base,
        tensor=arguments.tensor_model_parallel_size,
        ranks=arguments.actor_num_gpus_per_node,
        context=arguments.context_parallel_size,
        save=None if arguments.out is None else Save(arguments.save_version, arguments.out, arguments.checkpoint),
    )
    async with open_run(arguments.run, arguments.runs_dir) as opened:
        check_reach(opened.settings, "rollout", "algorithm", "trainer")
        with tempfile.TemporaryDirectory(prefix="slime-events-retrain-") as scratch:
            opened = await trainable(opened, arguments.hf_checkpoint, Path(scratch), note=note)
            report = await retrain(opened, request, show, environment=environment(), begun=begun)
    wrong = report.wrong
    if arguments.json:
        facts = msgspec.to_builtins(report) | {
            "equal": report.exact and wrong is None,
            "speed_up": report.speed_up,
            "first_difference": None if wrong is None else wrong.step,
        }
        sys.stdout.write(json_text(facts))
    else:
        print(report_text(report))
    return 0 if wrong is None else 1

"""`slime-events retrain`: train steps of a run again from its log, and compare them with what was committed.

No engine, no NATS server and no conductor takes part. On the run's own topology (ranks, tensor parallel size) every
step has to come out bit for bit; on another it is said by how much the weights differ. Exit code 0 where every digest
is equal, 1 where one is not: the first such step is named.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from schemas.errors import ImpossibleCombination
from slime_events.app.cli.render.text import json_text
from slime_events.app.cli.run_argument import RunParser

if TYPE_CHECKING:
    from slime_events.analysis.retrain.difference import Retrained
    from slime_events.analysis.retrain.report import Report


def main(argv: Sequence[str] = ()) -> int:
    """Train and print. Errors are raised."""
    if any(word.partition("=")[0] == "--branch" for word in argv):
        from slime_events.app.cli.commands.learn import retrain_into_a_branch

        return retrain_into_a_branch(argv)
    begun = time.perf_counter()
    said = _parser().parse_args(argv)
    if (said.save_version is None) != (said.out is None):
        raise ImpossibleCombination("--save-version V and --out FOLDER are given together")
    report = asyncio.run(_retrain(said, begun))
    from slime_events.analysis.retrain.report import report_text

    if said.json:
        sys.stdout.write(json_text(_facts(report)))
    else:
        print(report_text(report))
    return 0 if report.wrong is None else 1


async def _retrain(said: argparse.Namespace, begun: float) -> Report:
    from actors.offline.retrain_run import Save, Wanted, retrain
    from slime_events.analysis.retrain.report import step_text
    from slime_events.app.launch.branch_checkpoint import trainable
    from slime_events.app.launch.run_announcement import environment
    from slime_events.core.run.run_reader import open_run

    def show(step: Retrained) -> None:
        if not said.json:
            print(step_text(step), flush=True)

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    save = None if said.out is None else Save(said.save_version, said.out, said.checkpoint)
    wanted = Wanted(
        steps=said.steps,
        from_base=said.from_base,
        tensor=said.tensor_model_parallel_size,
        ranks=said.actor_num_gpus_per_node,
        save=save,
    )
    async with open_run(said.run, said.runs_dir) as opened:
        with tempfile.TemporaryDirectory(prefix="slime-events-retrain-") as scratch:
            opened = await trainable(opened, said.hf_checkpoint, Path(scratch), note=note)
            return await retrain(opened, wanted, show, environment=environment(), begun=begun)


def _facts(report: Report) -> dict[str, Any]:
    wrong = report.wrong
    facts: dict[str, Any] = msgspec.to_builtins(report)
    return facts | {
        "equal": report.exact and wrong is None,
        "speed_up": report.speed_up,
        "first_difference": None if wrong is None else wrong.step,
    }


def _parser() -> argparse.ArgumentParser:
    parser = RunParser(prog="slime-events retrain", description=__doc__)
    parser.add_argument("--steps", metavar="A:B", help="steps A to B, both included; A:, :B and A too [all]")
    parser.add_argument("--from-base", action="store_true", help="from the run's beginning: pass its checkpoints over")
    parser.add_argument(
        "--hf-checkpoint", metavar="FOLDER", help="the base checkpoint, where it is not any more where the run had it"
    )
    parser.add_argument("--tensor-model-parallel-size", type=int, metavar="N", help="of another topology")
    parser.add_argument("--actor-num-gpus-per-node", type=int, metavar="N", help="ranks of another topology")
    parser.add_argument("--save-version", type=int, metavar="V", help="write the weights of version V, with --out")
    parser.add_argument(
        "--out", metavar="FOLDER", help="where to: a folder of weight versions, such as a run's weights/"
    )
    parser.add_argument("--checkpoint", action="store_true", help="a trainer checkpoint of that version too")
    parser.add_argument(
        "--branch", metavar="NAME", help="into a new run, with --drop SQL or --changes FILE (--branch --help says more)"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    return parser

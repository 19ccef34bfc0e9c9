"""`slime-events plan`: GPUs, memory, speed and disk of a run, by arithmetic."""

from __future__ import annotations

import argparse
import sys

from actors.megatron.families.registry import read_architecture
from schemas.errors import InvalidValue
from slime_events.algorithms.train_arguments import parse_train, registered
from slime_events.app.cli.render.plan_text import plan_text
from slime_events.app.cli.render.text import json_text
from slime_events.app.launch.gpu_facts import machines
from slime_events.app.launch.machine_facts import described, facts_of
from slime_events.app.launch.run_plan import planned_model
from slime_events.core.config.combinations import impossible
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.planning.assumptions import Assumptions, read_assumptions
from slime_events.core.planning.facts import Facts
from slime_events.core.planning.needs import Needs
from slime_events.core.planning.plan import Verdict, make_plan
from slime_events.core.planning.smallest import smallest_fits


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; return 1 if the run does not fit, or if this version cannot start it."""
    settings = parse_train(arguments.flags, complete=False).settings
    _check_model(settings.trainer)
    assumed = read_assumptions(arguments.assume)
    unset = tuple(impossible(settings, registered()))
    return show_plan(settings, machines_for(arguments, settings), assumed, unset, as_json=arguments.json)


def show_plan(
    settings: TrainSettings, facts: Facts, assumed: Assumptions, unset: tuple[str, ...] = (), *, as_json: bool = False
) -> int:
    """Print the plan and return the exit code. unset: reasons for which `train` would refuse the settings."""
    model = planned_model(settings)
    plan = make_plan(facts, settings, model, assumed)
    remedies = smallest_fits(plan, settings, model)
    if as_json:
        totals = {"rank_bytes": plan.rank and plan.rank.total, "engine_bytes": plan.engine and plan.engine.total}
        sys.stdout.write(
            json_text({"verdict": plan.verdict, **totals, "remedies": remedies, "unset": unset, "plan": plan})
        )
    else:
        print(plan_text(plan, remedies, unset))
    return int(plan.verdict is not Verdict.FITS or bool(plan.limits))


def _check_model(trainer: TrainerSettings) -> None:
    """Check that the checkpoint is the model that the flags or a preset describe, as `train` does.

    Raises InvalidValue, CheckpointMismatch.
    """
    if not trainer.hf_checkpoint:
        raise InvalidValue("--hf-checkpoint is not set: the plan reads config.json of that folder, also with --preset")
    read_architecture(trainer.hf_checkpoint).check_flags(trainer.megatron)


def machines_for(arguments: argparse.Namespace, settings: TrainSettings) -> Facts:
    """Return the machines that flags describe; without such flags those of the Ray cluster, or this machine's GPUs.

    Without any GPU: as many machines as the run needs.
    """
    flags = (arguments.nodes, arguments.gpus_per_node, arguments.gpu_memory_gb, arguments.host_memory_gb)
    if flags == (None, None, None, None):
        facts = facts_of(machines(settings.run.ray_address))
        if facts.total:
            return facts
    return described(*flags, Needs.of(settings))

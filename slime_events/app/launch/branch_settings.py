"""The settings of a branch: its parent's settings with flags applied."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from actors.megatron.families.registry import read_architecture
from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.fields import unchangeable
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.config.rules import Later
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.run.run_settings import differences


def branch_settings(parent: TrainSettings, runs_dir: str, flags: Sequence[str]) -> ParsedTrain:
    """Apply flags to the parent's settings, for a run in `runs_dir` unless a flag names another folder.

    A branch begins with a version of its parent, so it has no `load`. It saves its checkpoints in its own folder, and
    dumps only if a flag says so. Loggers treat it as another run. Batch sizes are derived again. Raises ConfigError.
    """
    names = {word.partition("=")[0] for word in flags}
    if "--load" in names:
        raise InvalidValue("--load: leave it out, a branch begins with the version that --from names")
    sizes = {"num_steps_per_rollout": None} if "--global-batch-size" in names else {"global_batch_size": None}
    trainer = replace(parent.trainer, load=None, save=None, save_hf=None, **sizes)
    debug = replace(parent.debug, save_debug_rollout_data=None, save_debug_train_data=None, dump_details=None)
    metrics = replace(parent.metrics, wandb_run_id=None, tb_experiment_name=None)
    base = replace(parent, run=replace(parent.run, runs_dir=runs_dir), trainer=trainer, debug=debug, metrics=metrics)
    return parse_train(["--config", "the parent's settings", *flags], read=lambda _: to_toml(base))


def check_branch(parent: TrainSettings, own: TrainSettings, version: int, *, fresh_optimizer: bool) -> None:
    """Raise InvalidValue or ImpossibleCombination that names each setting which must equal the parent's."""
    steps, before, after = own.rollout.num_rollout or 0, parent.trainer, own.trainer
    if steps <= version:
        raise InvalidValue(
            f"--num-rollout {steps}: it counts the parent's steps too, and version {version} has {version} of them: "
            f"give more than {version}"
        )
    problems = []
    # If the parent's model is gone, training up to the version shows whether the new one is the same.
    if before.hf_checkpoint != after.hf_checkpoint and (Path(before.hf_checkpoint) / "config.json").is_file():
        old, new = (msgspec.to_builtins(read_architecture(side.hf_checkpoint)) for side in (before, after))
        problems = [
            f"--hf-checkpoint {after.hf_checkpoint}: {name} is {new[name]} there, and {value} in the parent's model, "
            "which the branch continues to train"
            for name, value in old.items()
            if new[name] != value
        ]
    if own.run.run == parent.run.run:
        problems.append(f"--run {own.run.run}: the parent has that name, in its log and archive: choose another name")
    changed = [(difference.component, difference.field) for difference in differences(parent, own)]
    fixed = unchangeable(changed, Later.BRANCH)
    problems += [
        f"{flag}: it cannot change, as the branch begins with the parent's weights in their precision" for flag in fixed
    ]
    if not fresh_optimizer:
        problems += [
            f"{flag}: the state of the parent's optimizer does not fit another value: begin with a new "
            "optimizer by --reset-optimizer"
            for flag in unchangeable(changed, Later.BRANCH_WITH_OPTIMIZER)
            if flag not in fixed
        ]
    if problems:
        raise ImpossibleCombination("\n".join(problems))

"""The settings of a branch: its parent's, under the flags that it is given."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from actors.megatron.architecture import Architecture
from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events.algorithms.train_arguments import parse_train
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.run.run_settings import flag_of

OPTIMIZER = (
    "optimizer", "actor_num_nodes", "actor_num_gpus_per_node", "tensor_model_parallel_size",
    "pipeline_model_parallel_size", "context_parallel_size", "only_train_params_name_list", "freeze_params_name_list",
)  # fmt: skip
"""What the optimizer's state is laid out by."""


def branch_settings(parent: TrainSettings, runs_dir: str, flags: Sequence[str]) -> ParsedTrain:
    """The parent's settings under the flags, for a run in `runs_dir` unless a flag names another folder.

    A branch begins with a version of its parent, so it has no `load`; and it saves its checkpoints where they do not
    meet its parent's, and dumps only where a flag says so. Loggers see another run. The sizes of a batch follow from
    each other anew. Raises ConfigError.
    """
    given = {word.partition("=")[0] for word in flags}
    if "--load" in given:
        raise InvalidValue("--load: a branch begins with the version that --from names")
    sizes = {"num_steps_per_rollout": None} if "--global-batch-size" in given else {"global_batch_size": None}
    trainer = replace(parent.trainer, load=None, save=None, save_hf=None, **sizes)
    debug = replace(parent.debug, save_debug_rollout_data=None, save_debug_train_data=None, dump_details=None)
    metrics = replace(parent.metrics, wandb_run_id=None, tb_experiment_name=None)
    base = replace(parent, run=replace(parent.run, runs_dir=runs_dir), trainer=trainer, debug=debug, metrics=metrics)
    return parse_train(["--config", "the parent's settings", *flags], read=lambda _: to_toml(base))


def check_branch(parent: TrainSettings, own: TrainSettings, version: int, *, fresh_optimizer: bool) -> None:
    """Raises InvalidValue or ImpossibleCombination naming each setting that cannot be another one than the parent's."""
    steps, before, after = own.rollout.num_rollout or 0, parent.trainer, own.trainer
    if steps <= version:
        raise InvalidValue(
            f"--num-rollout {steps}: steps are counted with the parent's, and version {version} has {version} of them: "
            f"give more than {version}"
        )
    problems = []
    # Where the parent's model is gone, training up to the version shows whether another one is the same.
    if before.hf_checkpoint != after.hf_checkpoint and (Path(before.hf_checkpoint) / "config.json").is_file():
        old, new = (msgspec.to_builtins(Architecture.read(one.hf_checkpoint)) for one in (before, after))
        problems = [
            f"--hf-checkpoint {after.hf_checkpoint}: {name} is {new[name]} there, and {value} in the parent's model, "
            "which the branch goes on training"
            for name, value in old.items()
            if new[name] != value
        ]
    if own.run.run == parent.run.run:
        problems.append(f"--run {own.run.run}: the parent has that name, in its log and in its archive; choose another")
    if before.bf16 != after.bf16:
        problems.append("--bf16: the branch begins with the parent's weights, in the precision that they have")
    if not fresh_optimizer:
        changed = [name for name in OPTIMIZER if getattr(before, name) != getattr(after, name)]
        problems += [
            f"{flag_of(name)}: the state of the parent's optimizer does not fit another one; --reset-optimizer begins "
            "with a new one"
            for name in changed
        ]
    if problems:
        raise ImpossibleCombination("\n".join(problems))

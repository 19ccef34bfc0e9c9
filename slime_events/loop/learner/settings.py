"""The settings of a learner: its parent's, with what a learner decides for itself."""

import functools

import msgspec

from schemas.errors import InvalidValue
from schemas.runs import Branched
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.run.run_settings import differences, flag_of
from slime_events.loop.learner.batches import Batches
from slime_events.loop.learner.overrides import Overrides
from slime_events.loop.learner.recredit import Recredit
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.filters.decide import make_group_filter

OWN = {
    "run": None,
    "algorithm": None,
    "trainer": None,
    "metrics": None,
    "rollout": ("num_rollout", "dynamic_sampling_filter_path", "rollout_deadline"),
    "engine": ("hf_checkpoint",),
}
"""Component to fields that a learner decides for itself; None: all of them. All others are part of the recorded
rollouts. The checkpoint is the same, but may have another path."""
NO_ENGINE = (
    "a learner generates nothing, so it has no engine to evaluate with. A branch has: `slime-events branch {run} "
    "--from VERSION --run NAME` begins with an evaluation of that version"
)
NO_DUMPS = "a learner neither writes dumps nor loads any. What it trains on is in the logs of its parent and its own"
NO_GATEWAY = "a learner takes no prompts, so it has no gateway of its own"
NOT_OF_A_LEARNER = {"evaluation": NO_ENGINE, "debug": NO_DUMPS, "gateway": NO_GATEWAY}
"""Component to why a learner cannot decide on it."""
IDLE = ("hf_checkpoint", "save", "save_interval", "save_epoch", "save_last", "save_hf", "keep_weights",
        "keep_weights_every", "keep_checkpoints", "keep_checkpoints_every", "update_weights_interval",
        "global_batch_size", "distributed_timeout_minutes", "hang_seconds", "max_retrained_steps")  # fmt: skip
"""Fields of the trainer that do not change the weights."""


def learner_settings(parent: TrainSettings, requested: TrainSettings, *, steps: int) -> TrainSettings:
    """The settings of a learner of `parent`. requested: the parent's settings under the flags. steps: training ends
    there.

    A batch has as many optimizer steps as the parent's, and each step as many rollouts as there are: the number of
    samples may differ. Raises InvalidValue naming what a learner cannot decide.
    """
    recorded, apart = list[str](), dict[str, list[str]]()
    for component, field, _, _ in differences(parent, requested):
        own = OWN.get(component, ())
        if component in NOT_OF_A_LEARNER:
            apart.setdefault(component, []).append(flag_of(field))
        elif own is not None and field not in own:
            recorded.append(flag_of(field))
    if recorded:
        raise InvalidValue(
            f"{', '.join(recorded)}: went into the rollouts, which are there already. A learner decides on the "
            "algorithm, the trainer, the filter and the number of steps"
        )
    reward, rollout = requested.reward, requested.rollout
    if path := reward.custom_reward_post_process_path or rollout.custom_convert_samples_to_train_data_path:
        raise InvalidValue(
            f"the rewards of this run's batches were made by {path}. A learner normalises rewards by its own algorithm "
            "settings alone: train a branch (`slime-events branch`)"
        )
    if requested.algorithm.keep_old_actor:
        raise InvalidValue("--keep-old-actor: the weights that made a learner's rollouts are its parent's")
    for component, flags in apart.items():
        raise InvalidValue(f"{', '.join(flags)}: {NOT_OF_A_LEARNER[component].format(run=requested.run.run)}")
    if requested.run.log_keep_steps not in (None, parent.run.log_keep_steps):
        raise InvalidValue("--log-keep-steps: a learner's log is small, as it holds no rollouts, and all of it is kept")
    run = msgspec.structs.replace(requested.run, log_keep_steps=None)
    trainer = requested.trainer
    written = {name: getattr(trainer, name) for name in ("save", "save_hf")}
    folders = {name: path if path != getattr(parent.trainer, name) else None for name, path in written.items()}
    trainer = msgspec.structs.replace(trainer, global_batch_size=None, **folders)
    rollout = msgspec.structs.replace(rollout, num_rollout=steps)
    return msgspec.structs.replace(requested, run=run, trainer=trainer, rollout=rollout)


def makes_other_weights(parent: TrainSettings, own: TrainSettings) -> bool:
    """Whether the same batches would make other weights."""
    trains = ("algorithm", "trainer")
    return any(one.component in trains and one.field not in IDLE for one in differences(parent, own))


def make_batches(parent: OpenedRun, own: TrainSettings, branched: Branched, changes: Overrides) -> Batches:
    """The decisions of a learner with these settings. Each optimizer step takes a rollout on each copy of the model."""
    path, trainer = own.rollout.dynamic_sampling_filter_path, own.trainer
    group_filter = None
    if path != parent.settings.rollout.dynamic_sampling_filter_path:
        group_filter = make_group_filter(own.rollout, ArgsView.of_run(own))
    copy = trainer.tensor_model_parallel_size * trainer.pipeline_model_parallel_size * trainer.context_parallel_size
    return Batches(
        parent.run,
        functools.partial(normalize_rewards, settings=own.algorithm),
        overrides=changes,
        group_filter=group_filter,
        first=branched.version,
        recredit=None if changes.credit is None else Recredit(changes.credit, parent.fetch),
        least=(trainer.num_steps_per_rollout or 1) * max(1, trainer.world_size // copy),
    )

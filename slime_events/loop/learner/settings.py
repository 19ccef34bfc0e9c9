"""Settings of a learner: its parent's, except those that a learner decides for itself."""

import functools

import msgspec

from schemas.errors import InvalidValue
from schemas.runs import Branched
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.core.config.fields import unchangeable
from slime_events.core.config.rules import Later
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.run.run_settings import differences, flag_of
from slime_events.loop.learner.batches import Batches
from slime_events.loop.learner.overrides import Overrides
from slime_events.loop.learner.recredit import Recredit
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.filters.decide import make_group_filter

NO_ENGINE = (
    "a learner generates nothing, so it has no engine for evaluations. A branch has one: `slime-events branch {run} "
    "--from VERSION --run NAME` evaluates that version first"
)
NO_DUMPS = "a learner neither writes nor loads dumps. Its training data is in its parent's log and its own"
NO_GATEWAY = "a learner takes no prompts, so it has no gateway"
NOT_OF_A_LEARNER = {"evaluation": NO_ENGINE, "debug": NO_DUMPS, "gateway": NO_GATEWAY}
"""Component to the reason why a learner cannot set it."""
IDLE = ("hf_checkpoint", "save", "save_interval", "save_epoch", "save_last", "save_hf", "keep_weights",
        "keep_weights_every", "keep_checkpoints", "keep_checkpoints_every", "update_weights_interval",
        "global_batch_size", "store_before_commit", "distributed_timeout_minutes", "hang_seconds",
        "max_retrained_steps")  # fmt: skip
"""Fields of the trainer that do not change the weights."""


def learner_settings(parent: TrainSettings, requested: TrainSettings, *, steps: int) -> TrainSettings:
    """Return the settings of a learner of `parent`. requested: the parent's settings with the flags applied.

    steps: step at which training ends. A batch has as many optimizer steps as the parent's, and they divide the
    rollouts: the number of samples may differ. Raises InvalidValue, with the settings that a learner cannot change.
    """
    recorded, apart = list[str](), dict[str, list[str]]()
    for component, field, _, _ in differences(parent, requested):
        if component in NOT_OF_A_LEARNER:
            apart.setdefault(component, []).append(flag_of(field))
        else:
            recorded += unchangeable([(component, field)], Later.LEARN)
    if recorded:
        raise InvalidValue(
            f"{', '.join(recorded)}: the recorded rollouts depend on these. A learner can change only the "
            "algorithm, the trainer, the filter and the number of steps"
        )
    reward, rollout = requested.reward, requested.rollout
    if path := reward.custom_reward_post_process_path or rollout.custom_convert_samples_to_train_data_path:
        raise InvalidValue(
            f"{path} made the rewards of this run's batches. A learner normalises rewards only by its algorithm "
            "settings: train a branch instead (`slime-events branch`)"
        )
    if requested.algorithm.keep_old_actor:
        raise InvalidValue("--keep-old-actor: only the parent has the weights that made the rollouts")
    for component, flags in apart.items():
        raise InvalidValue(f"{', '.join(flags)}: {NOT_OF_A_LEARNER[component].format(run=requested.run.run)}")
    if requested.run.log_keep_steps not in (None, parent.run.log_keep_steps):
        raise InvalidValue("--log-keep-steps: a learner's log has no rollouts, so it is small and kept whole")
    run = msgspec.structs.replace(requested.run, log_keep_steps=None)
    trainer = requested.trainer
    written = {name: getattr(trainer, name) for name in ("save", "save_hf")}
    folders = {name: path if path != getattr(parent.trainer, name) else None for name, path in written.items()}
    trainer = msgspec.structs.replace(trainer, global_batch_size=None, **folders)
    rollout = msgspec.structs.replace(rollout, num_rollout=steps)
    return msgspec.structs.replace(requested, run=run, trainer=trainer, rollout=rollout)


def makes_other_weights(parent: TrainSettings, own: TrainSettings) -> bool:
    """Return whether the same batches would make different weights."""
    trains = ("algorithm", "trainer")
    return any(
        difference.component in trains and difference.field not in IDLE for difference in differences(parent, own)
    )


def make_batches(parent: OpenedRun, own: TrainSettings, branched: Branched, changes: Overrides) -> Batches:
    """Return the batches of a learner with these settings. An optimizer step needs a rollout per copy of the model."""
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

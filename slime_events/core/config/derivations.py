"""What follows from what was set: slime's rules for the settings that are left out, plus what makes one run whole."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from slime_events.core.config.debugging import derive_debug
from slime_events.core.config.evaluation import EvalSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.staleness_bound import staleness_bound
from slime_events.core.config.trainer import TrainerSettings


def derive(settings: TrainSettings, given: Collection[tuple[str, str]] = ()) -> tuple[TrainSettings, tuple[str, ...]]:
    """The settings with everything filled in that follows from the rest, and a sentence for whatever was changed.

    `given`: the (component, field) pairs that were asked for by flag; they are never changed. Nothing is checked here:
    what cannot be derived stays None, and `impossible` says why. Applying it twice gives the same as once.
    """
    settings, notes = derive_debug(settings)
    checkpoint = settings.engine.hf_checkpoint or settings.trainer.hf_checkpoint
    algorithm, rollout = settings.algorithm, settings.rollout
    if algorithm.eps_clip_high is None:
        algorithm = replace(algorithm, eps_clip_high=algorithm.eps_clip)
    if rollout.n_samples_per_prompt == 1 and algorithm.grpo_std_normalization:
        algorithm = replace(algorithm, grpo_std_normalization=False)
        notes.append("grpo_std_normalization is off: a group of one sample has no standard deviation.")
    lag = 0 if settings.debug.debug_rollout_only else settings.trainer.update_weights_interval - 1
    if rollout.max_staleness < lag and ("rollout", "max_staleness") not in given:
        notes.append(
            f"max_staleness is {lag}: weights are published every {lag + 1} steps, so rollouts are up to {lag} behind."
        )
        rollout = replace(rollout, max_staleness=lag)
    if note := _wider_bound(settings, rollout):
        notes.append(note)
    if rollout.rollout_max_prompt_len is None and rollout.rollout_max_context_len is not None:
        rollout = replace(rollout, rollout_max_prompt_len=rollout.rollout_max_context_len - 1)
    if rollout.mask_offpolicy_in_partial_rollout and not rollout.partial_rollout:
        notes.append("mask_offpolicy_in_partial_rollout has no effect: partial_rollout is not set.")
    evaluation = _evaluation(settings.evaluation, settings)
    if evaluation.eval_prompt_data and evaluation.eval_interval is None:
        notes.append("eval_prompt_data is never used: eval_interval is not set.")
    if rollout.rollout_top_p != 1.0:
        notes.append(
            "rollout_top_p is not 1: engine and trainer take log-probs over the whole vocabulary all the same."
        )
    if algorithm.kl_loss_coef and not algorithm.use_kl_loss:
        notes.append("kl_loss_coef has no effect: use_kl_loss is not set.")
    trainer = replace(settings.trainer, hf_checkpoint=settings.trainer.hf_checkpoint or checkpoint)
    reward = settings.reward
    derived = replace(
        settings,
        algorithm=algorithm,
        rollout=rollout,
        evaluation=evaluation,
        engine=replace(settings.engine, hf_checkpoint=settings.engine.hf_checkpoint or checkpoint),
        trainer=_schedule(_batches(trainer, rollout), rollout),
        reward=replace(reward, eval_reward_key=reward.eval_reward_key or reward.reward_key),
    )
    return derived, tuple(notes)


def _wider_bound(settings: TrainSettings, rollout: RolloutSettings) -> str | None:
    """Where a sample may be further behind than --max-staleness says: by how much, and what adds it."""
    if settings.debug.debug_rollout_only or rollout.rollout_batch_size < 1:
        return None
    draw, interval = rollout.over_sampling_batch_size, settings.trainer.update_weights_interval
    bound = staleness_bound(
        max_staleness=rollout.max_staleness, publish_every=interval, draw=draw, groups=rollout.rollout_batch_size
    )
    if bound <= rollout.max_staleness:
        return None
    causes = [f"draws of {draw} groups, whose surplus is kept for later steps,"] if draw and draw > 1 else []
    causes += [f"weights that are published every {interval} steps"] if interval > 1 else []
    return f"samples may be up to {bound} versions behind, not only max_staleness {rollout.max_staleness}: " + (
        f"{' and '.join(causes)} add {bound - rollout.max_staleness}."
    )


def _batches(trainer: TrainerSettings, rollout: RolloutSettings) -> TrainerSettings:
    """`rollout_batch_size x n_samples_per_prompt = global_batch_size x num_steps_per_rollout`: the missing one.

    With neither given, a rollout step is one optimizer step.
    """
    samples = rollout.rollout_batch_size * rollout.n_samples_per_prompt
    size, steps = trainer.global_batch_size, trainer.num_steps_per_rollout
    if size is None and steps is None:
        return replace(trainer, global_batch_size=samples, num_steps_per_rollout=1)
    if size is None and steps and samples % steps == 0:
        return replace(trainer, global_batch_size=samples // steps)
    if steps is None and size and samples % size == 0:
        return replace(trainer, num_steps_per_rollout=samples // size)
    return trainer


def _schedule(trainer: TrainerSettings, rollout: RolloutSettings) -> TrainerSettings:
    """A learning rate that decays does so over the whole run, where the run's length is known before it starts."""
    decays, steps = trainer.lr_decay_style != "constant", trainer.num_steps_per_rollout
    if not decays or trainer.lr_decay_iters is not None or rollout.num_rollout is None or steps is None:
        return trainer
    return replace(trainer, lr_decay_iters=rollout.num_rollout * steps)


def _evaluation(evaluation: EvalSettings, settings: TrainSettings) -> EvalSettings:
    """Evaluation samples as training does, and reads the same fields, where it was not told otherwise."""
    rollout, data = settings.rollout, settings.data
    fallback = {
        "eval_temperature": rollout.rollout_temperature,
        "eval_top_p": rollout.rollout_top_p,
        "eval_top_k": rollout.rollout_top_k,
        "eval_max_response_len": rollout.rollout_max_response_len,
        "eval_input_key": data.input_key,
        "eval_label_key": data.label_key,
        "eval_on": "version",
    }
    missing = {name: value for name, value in fallback.items() if getattr(evaluation, name) is None}
    return replace(evaluation, **missing)

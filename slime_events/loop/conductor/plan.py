"""`Plan`: what the conductor decides by. Settings only; whatever is learned on the way is in the state."""

from __future__ import annotations

import msgspec

from schemas.rollouts import Sampling
from slime_events.core.config.evaluation import EvalSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.staleness_bound import staleness_bound
from slime_events.core.config.trainer import TrainerSettings


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """steps: training steps of the run. groups, samples: per step and per group. draw: groups drawn at each top-up
    (None: what is missing). in_prompt_order: groups are decided in the order they were asked for.
    verdicts_at_once: each verdict is said as soon as it stands; else, where no filter can make room, with its batch.
    partial_rollout: unfinished rollouts rest at step boundaries. mask_offpolicy: those that rested are trained on their
    newest version's tokens only. eval_exact: an evaluation is made by the version that it is of alone.
    """

    steps: int
    groups: int
    samples: int
    sampling: Sampling
    seed: int = 42
    draw: int | None = None
    max_staleness: int = 0
    in_prompt_order: bool = True
    verdicts_at_once: bool = True
    partial_rollout: bool = False
    mask_offpolicy: bool = False
    max_attempts: int = 3
    publish_every: int = 1
    checkpoint_every: int | None = None
    eval_every: int | None = None
    eval_first: bool = True
    eval_names: tuple[str, ...] = ()
    eval_samples: int = 1
    eval_exact: bool = False
    eval_sampling: Sampling | None = None

    @property
    def room(self) -> int:
        """Groups that may be open: rollout_batch_size x (1 + max_staleness)."""
        return self.groups * (1 + self.max_staleness)

    @property
    def staleness_bound(self) -> int:
        """Versions a sample may be behind."""
        return staleness_bound(
            max_staleness=self.max_staleness, publish_every=self.publish_every, draw=self.draw, groups=self.groups
        )

    @property
    def ahead(self) -> int:
        """Steps that may be committed from the draw of a prompt to the step that trains it: prompts are drawn one step
        ahead of their requests.
        """
        return self.staleness_bound + 1

    @property
    def broken_limit(self) -> int:
        """Groups in a row that may fail for other reasons than the filter before the run stops."""
        return max(2 * self.groups, 16)


def make_plan(rollout: RolloutSettings, evaluation: EvalSettings, trainer: TrainerSettings) -> Plan:
    """The plan that settings describe. `num_rollout` must be resolved."""
    if rollout.num_rollout is None:
        raise ValueError("num_rollout is not resolved")
    sampling = Sampling(
        max_new_tokens=rollout.rollout_max_response_len,
        temperature=rollout.rollout_temperature,
        top_p=rollout.rollout_top_p,
        top_k=rollout.rollout_top_k,
        stop=tuple(rollout.rollout_stop),
        stop_token_ids=tuple(rollout.rollout_stop_token_ids),
        skip_special_tokens=rollout.rollout_skip_special_tokens,
    )
    order = rollout.accept_order
    return Plan(
        steps=rollout.num_rollout,
        groups=rollout.rollout_batch_size,
        samples=rollout.n_samples_per_prompt,
        sampling=sampling,
        seed=rollout.rollout_seed,
        draw=rollout.over_sampling_batch_size,
        max_staleness=rollout.max_staleness,
        verdicts_at_once=rollout.dynamic_sampling_filter_path is not None,
        in_prompt_order=order == "prompt" or (order == "auto" and rollout.max_staleness == 0),
        partial_rollout=rollout.partial_rollout,
        mask_offpolicy=rollout.mask_offpolicy_in_partial_rollout,
        max_attempts=rollout.max_attempts,
        publish_every=trainer.update_weights_interval,
        checkpoint_every=trainer.save_interval,
        eval_every=evaluation.eval_interval,
        eval_first=not evaluation.skip_eval_before_train,
        eval_names=tuple(evaluation.eval_prompt_data[::2]),
        eval_exact=evaluation.eval_on == "version",
        eval_samples=evaluation.n_samples_per_eval_prompt,
        eval_sampling=_eval_sampling(sampling, evaluation),
    )


def _eval_sampling(sampling: Sampling, evaluation: EvalSettings) -> Sampling:
    changes = {
        "max_new_tokens": evaluation.eval_max_response_len,
        "temperature": evaluation.eval_temperature,
        "top_p": evaluation.eval_top_p,
        "top_k": evaluation.eval_top_k,
    }
    return msgspec.structs.replace(sampling, **{k: v for k, v in changes.items() if v is not None})

"""`Plan`: the settings that the conductor decides by. All else that it needs is in the state."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from schemas.groups import GroupRejected, RejectionCause
from schemas.rollouts import Sampling
from slime_events.core.config.data import DataSettings
from slime_events.core.config.evaluation import EvalSet, EvalSettings
from slime_events.core.config.per_source import shares
from slime_events.core.config.rollout import RolloutSettings, staleness_bound
from slime_events.core.config.save_steps import NEVER, SaveSteps
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.state.group import GroupState
from slime_events.core.state.run import RunPhase, RunState


class EvalPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How one data set is evaluated. samples: answers to each question. max_context: tokens of prompt and answer."""

    sampling: Sampling
    samples: int = 1
    max_context: int | None = None

    def sampling_for(self, prompt: int) -> Sampling:
        """The sampling after a prompt of so many tokens."""
        drawn = self.sampling
        if self.max_context is None:
            return drawn
        most = min(drawn.max_new_tokens, max(1, self.max_context - prompt))
        return msgspec.structs.replace(drawn, max_new_tokens=most, min_new_tokens=min(drawn.min_new_tokens, most))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """steps: training steps of the run. groups, samples: per step and per group. draw: groups drawn at each top-up
    (None: the missing ones). in_prompt_order: groups are decided in the order of their requests. verdicts_at_once: each
    verdict is appended as soon as possible; else, without a filter, with its batch. partial_rollout: unfinished
    rollouts are suspended at step boundaries. mask_offpolicy: suspended ones are trained on the tokens of their newest
    version only. eval_exact: only the evaluated version makes an evaluation's answers. evals: data sets by name.
    shares: of a batch, by source; empty: first come, first served. draws: the run has prompts of its own.
    by_function, evals_by_function: a user's rollout function makes the rollouts, and the evaluations. agents: sessions
    of agents make all of them.
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
    saves: SaveSteps = NEVER
    eval_every: int | None = None
    eval_first: bool = True
    eval_exact: bool = False
    evals: dict[str, EvalPlan] = {}
    shares: dict[str, float] = {}
    draws: bool = True
    by_function: bool = False
    evals_by_function: bool = False
    agents: bool = False

    def eval_of(self, name: str) -> EvalPlan:
        """How a data set is evaluated; as training samples where it is one no more, and still under way."""
        return self.evals.get(name) or EvalPlan(sampling=self.sampling)

    @property
    def room(self) -> int:
        """Groups that may be open: rollout_batch_size x (1 + max_staleness)."""
        return self.groups * (1 + self.max_staleness)

    @property
    def staleness_bound(self) -> int:
        """Versions that a sample may be behind."""
        return staleness_bound(
            max_staleness=self.max_staleness, publish_every=self.publish_every, draw=self.draw, groups=self.groups
        )

    @property
    def ahead(self) -> int:
        """Steps that may pass from the draw of a prompt to its training; it is drawn a step before its request."""
        return self.staleness_bound + 1

    @property
    def broken_limit(self) -> int:
        """Groups in a row that may fail for other reasons than the filter before the run stops."""
        return max(2 * self.groups, 16)


def make_plan(
    rollout: RolloutSettings, evaluation: EvalSettings, trainer: TrainerSettings, data: DataSettings | None = None
) -> Plan:
    """The plan of these settings. `num_rollout` must be set. data: where it is to decide which prompt is next."""
    if rollout.num_rollout is None:
        raise ValueError("num_rollout is not set")
    sampling = Sampling(
        max_new_tokens=rollout.rollout_max_response_len,
        temperature=rollout.rollout_temperature,
        top_p=rollout.rollout_top_p,
        top_k=rollout.rollout_top_k,
        stop=tuple(rollout.rollout_stop),
        stop_token_ids=tuple(rollout.rollout_stop_token_ids),
        skip_special_tokens=rollout.rollout_skip_special_tokens,
    )
    order, by_function = rollout.accept_order, rollout.rollout_function_path is not None
    sets = {} if evaluation.own_function else evaluation.sets()
    return Plan(
        steps=rollout.num_rollout,
        groups=rollout.rollout_batch_size,
        samples=rollout.n_samples_per_prompt,
        sampling=sampling,
        seed=rollout.rollout_seed,
        draw=None if by_function else rollout.over_sampling_batch_size,
        max_staleness=rollout.max_staleness,
        verdicts_at_once=rollout.dynamic_sampling_filter_path is not None or by_function,
        in_prompt_order=order == "prompt" or (order == "auto" and rollout.max_staleness == 0),
        partial_rollout=rollout.partial_rollout and not by_function,
        mask_offpolicy=rollout.mask_offpolicy_in_partial_rollout,
        max_attempts=rollout.max_attempts,
        publish_every=trainer.update_weights_interval,
        saves=trainer.saves,
        eval_every=evaluation.eval_interval,
        eval_first=not evaluation.skip_eval_before_train,
        eval_exact=evaluation.eval_on == "version",
        evals={name: _eval_plan(one, evaluation, sampling) for name, one in sets.items()},
        shares=shares(data.source_share) if data else {},
        draws=data is None or not data.waits_for_producers,
        by_function=by_function,
        evals_by_function=evaluation.own_function is not None,
        agents=rollout.agents,
    )


def _eval_plan(one: EvalSet, evaluation: EvalSettings, training: Sampling) -> EvalPlan:
    own: dict[str, Any] = {
        "max_new_tokens": one.max_response_len,
        "min_new_tokens": one.min_new_tokens,
        "temperature": one.temperature,
        "top_p": one.top_p,
        "top_k": one.top_k,
        "stop": None if one.stop is None else tuple(one.stop),
        "stop_token_ids": None if one.stop_token_ids is None else tuple(one.stop_token_ids),
    }
    return EvalPlan(
        sampling=msgspec.structs.replace(training, **{name: value for name, value in own.items() if value is not None}),
        samples=one.n_samples_per_eval_prompt or 1,
        max_context=evaluation.eval_max_context_len,
    )


def at_boundary(next_step: int, state: RunState, plan: Plan) -> bool:
    """Whether `next_step`, the first that is not sealed, has to wait for a commit.

    Tokens generated meanwhile would be more than `max_staleness` versions old at the step that trains them first.
    """
    return next_step > state.version + plan.max_staleness


def is_suspended(next_step: int, state: RunState, plan: Plan) -> bool:
    """Whether unfinished training rollouts are suspended now, and none is requested."""
    return plan.partial_rollout and at_boundary(next_step, state, plan)


def may_decide(state: RunState, plan: Plan) -> bool:
    """Whether the run is on, and the state not between the two halves of one append.

    A commit that publishes is step.committed and weights.published in one append, but a reader may get them one after
    the other. Requests in between would be for weights that are outdated already.
    """
    if state.phase is not RunPhase.RUNNING or state.published < 0:
        return False
    published_too = state.version % plan.publish_every == 0 or state.version == plan.steps
    return state.published == state.version or not published_too


def bound_of(group: GroupState, plan: Plan) -> int:
    """Versions that the weights which train a group may be past its oldest; recorded rollouts have their own bound."""
    return plan.staleness_bound if group.recalled is UNSET else group.recalled.bound


def last_step(group: GroupState, plan: Plan) -> int:
    """The last step that may train a group."""
    return group.oldest + bound_of(group, plan)


def in_time(groups: Sequence[GroupState], step: int, plan: Plan) -> bool:
    """Whether steps from `step` on can train all these groups within their bounds: oldest first, a batch per step."""
    last_steps = sorted(last_step(group, plan) for group in groups)
    return all(step + place // plan.groups <= last for place, last in enumerate(last_steps))


def stale(group: GroupState, accepted: Sequence[GroupState], state: RunState, plan: Plan) -> GroupRejected | None:
    """The rejection of a group that cannot be trained within its bound beside the accepted groups.

    Sealing waits for groups that are still being generated, so this happens only where an engine used older weights
    than requested, or where recorded rollouts waited too long. An accepted group stays in time.
    """
    step = state.by_function.step_of(group.group)  # a batch has what a rollout function returned for it
    if step is None:
        step = state.next_step + len(accepted) // plan.groups
    behind, bound = step - group.oldest, bound_of(group, plan)
    if behind <= bound or (not plan.in_prompt_order and in_time([*accepted, group], state.next_step, plan)):
        return None
    return GroupRejected(
        group=group.group,
        cause=RejectionCause.STALE,
        reason=f"step {step} is the first with a place for it, {behind} versions after its oldest token; {bound} is "
        "the most",
        samples=tuple(group.samples),
        rewards=group.graded,
        figures={"oldest_version": group.oldest, "step": step, "behind": behind, "bound": bound},
    )

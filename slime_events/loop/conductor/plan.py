"""`Plan`: the settings that the conductor decides by. Everything else that it needs is in the state."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET

from schemas.doc import doc
from schemas.groups import GroupRejected, RejectionCause
from schemas.rollouts import Maker, Sampling
from slime_events.core.config.data import DataSettings
from slime_events.core.config.evaluation import EvalSet, EvalSettings
from slime_events.core.config.per_source import shares
from slime_events.core.config.rollout import RolloutSettings, staleness_bound
from slime_events.core.config.save_steps import NEVER, SaveSteps
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.state.group import GroupPhase, GroupState
from slime_events.core.state.group_index import Age
from slime_events.core.state.run import RunPhase, RunState


class EvalPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for evaluating a data set."""

    sampling: Sampling
    samples: Annotated[int, doc("answers per question")] = 1
    max_context: Annotated[int | None, doc("most tokens of question and answer; None: no limit")] = None

    def sampling_for(self, prompt: int) -> Sampling:
        """Return the sampling after a prompt of `prompt` tokens."""
        sampling = self.sampling
        if self.max_context is None:
            return sampling
        most = min(sampling.max_new_tokens, max(1, self.max_context - prompt))
        least = min(sampling.min_new_tokens, most)
        return msgspec.structs.replace(sampling, max_new_tokens=most, min_new_tokens=least)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the conductor."""

    steps: Annotated[int, doc("training steps of the run")]
    groups: Annotated[int, doc("groups per step")]
    samples: Annotated[int, doc("samples per group")]
    sampling: Sampling
    seed: int = 42
    draw: Annotated[int | None, doc("groups drawn at each top-up; None: the missing ones")] = None
    max_staleness: int = 0
    in_prompt_order: Annotated[bool, doc("decide groups in the order of their requests")] = True
    verdicts_at_once: Annotated[
        bool, doc("append each verdict as soon as possible; otherwise, without a filter, with its batch")
    ] = True
    partial_rollout: Annotated[bool, doc("suspend unfinished rollouts at step boundaries")] = False
    mask_offpolicy: Annotated[bool, doc("train suspended rollouts only on tokens of their newest version")] = False
    max_attempts: int = 3
    publish_every: Annotated[int, doc("steps between two published versions")] = 1
    saves: SaveSteps = NEVER
    eval_every: Annotated[int | None, doc("versions between evaluations; None: no evaluations")] = None
    eval_first: Annotated[bool, doc("evaluate the first version")] = True
    eval_exact: Annotated[bool, doc("only the version under evaluation makes the answers")] = False
    evals: Annotated[dict[str, EvalPlan], doc("data sets by name")] = {}
    shares: Annotated[dict[str, float], doc("source to its share of a batch; empty: first come, first served")] = {}
    draws: Annotated[bool, doc("the run draws prompts itself")] = True
    by_function: Annotated[bool, doc("a user's rollout function makes the rollouts")] = False
    evals_by_function: Annotated[bool, doc("a user's function makes the evaluations")] = False
    agents: Annotated[bool, doc("agents make all rollouts")] = False

    def eval_of(self, name: str) -> EvalPlan:
        """Return how a data set is evaluated; like training samples if it was removed during its evaluation."""
        return self.evals.get(name) or EvalPlan(sampling=self.sampling)

    @property
    def maker(self) -> Maker:
        """Maker of the rollouts that the conductor requests, except recorded ones and those from outside."""
        return Maker.AGENT if self.agents else Maker.ENGINE

    @property
    def room(self) -> int:
        """Most groups that may be open: rollout_batch_size x (1 + max_staleness)."""
        return self.groups * (1 + self.max_staleness)

    @property
    def staleness_bound(self) -> int:
        """Most versions that a sample may be behind."""
        return staleness_bound(
            max_staleness=self.max_staleness, publish_every=self.publish_every, draw=self.draw, groups=self.groups
        )

    @property
    def ahead(self) -> int:
        """Most steps from the draw of a prompt to its training; it is drawn a step before its request."""
        return self.staleness_bound + 1

    @property
    def broken_limit(self) -> int:
        """Consecutive groups that may fail, for reasons other than the filter, before the run fails."""
        return max(2 * self.groups, 16)


def make_plan(
    rollout: RolloutSettings, evaluation: EvalSettings, trainer: TrainerSettings, data: DataSettings | None = None
) -> Plan:
    """Return the plan of these settings. `num_rollout` must be set. data: None for a plan that draws no prompts."""
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
        evals={name: _eval_plan(dataset, evaluation, sampling) for name, dataset in sets.items()},
        shares=shares(data.source_share) if data else {},
        draws=data is None or not data.waits_for_producers,
        by_function=by_function,
        evals_by_function=evaluation.own_function is not None,
        agents=rollout.agents,
    )


def _eval_plan(dataset: EvalSet, evaluation: EvalSettings, training: Sampling) -> EvalPlan:
    own: dict[str, Any] = {
        "max_new_tokens": dataset.max_response_len,
        "min_new_tokens": dataset.min_new_tokens,
        "temperature": dataset.temperature,
        "top_p": dataset.top_p,
        "top_k": dataset.top_k,
        "stop": None if dataset.stop is None else tuple(dataset.stop),
        "stop_token_ids": None if dataset.stop_token_ids is None else tuple(dataset.stop_token_ids),
    }
    return EvalPlan(
        sampling=msgspec.structs.replace(training, **{name: value for name, value in own.items() if value is not None}),
        samples=dataset.n_samples_per_eval_prompt or 1,
        max_context=evaluation.eval_max_context_len,
    )


def at_boundary(next_step: int, state: RunState, plan: Plan) -> bool:
    """Return whether `next_step`, the first that is not sealed, must wait for a commit.

    Tokens generated meanwhile would be more than `max_staleness` versions old at the first step that trains them.
    """
    return next_step > state.version + plan.max_staleness


def is_suspended(next_step: int, state: RunState, plan: Plan) -> bool:
    """Return whether unfinished training rollouts are suspended now, and none is requested."""
    return plan.partial_rollout and at_boundary(next_step, state, plan)


def may_decide(state: RunState, plan: Plan) -> bool:
    """Return whether the run is running, and the state is not between the two events of an append.

    A commit that publishes is step.committed and weights.published in one append, but a reader may receive them one by
    one. Requests in between would be for outdated weights.
    """
    if state.phase is not RunPhase.RUNNING or state.published < 0:
        return False
    published_too = state.version % plan.publish_every == 0 or state.version == plan.steps
    return state.published == state.version or not published_too


def bound_of(group: GroupState, plan: Plan) -> int:
    """Return how many versions behind a group may be when it is trained; recorded rollouts have their own bound."""
    return plan.staleness_bound if group.recalled is UNSET else group.recalled.bound


def last_step(group: GroupState, plan: Plan) -> int:
    """Return the last step that may train a group."""
    return group.oldest + bound_of(group, plan)


def last_steps(ages: Mapping[Age, int], plan: Plan) -> Counter[int]:
    """Return the last step that may train a group, with the number of groups, of groups by age."""
    steps: Counter[int] = Counter()
    for age, count in ages.items():
        steps[age.oldest + (plan.staleness_bound if age.bound is None else age.bound)] += count
    return steps


def in_time(last: Mapping[int, int], step: int, plan: Plan) -> bool:
    """Return whether steps from `step` on can train groups within their bounds: oldest first, a batch per step.

    last: last step of a group to the number of groups.
    """
    groups = 0
    for bound in sorted(last):
        groups += last[bound]
        if last[bound] > 0 and step + (groups - 1) // plan.groups > bound:
            return False
    return True


def stale(group: GroupState, accepted: Sequence[GroupState], state: RunState, plan: Plan) -> GroupRejected | None:
    """Return the rejection of a group that cannot be trained within its bound beside the accepted groups; or None.

    accepted: groups that this cycle accepts, besides the state's. Sealing waits for groups that are still being
    generated, so this happens only if an engine used older weights than requested, or if recorded rollouts waited too
    long. An accepted group stays in time.
    """
    step = state.by_function.step_of(group.group)  # a rollout function defines the groups of a batch
    if step is None:
        step = state.next_step + (len(state.accepted) + len(accepted)) // plan.groups
    behind, bound = step - group.oldest, bound_of(group, plan)
    if behind <= bound:
        return None
    if not plan.in_prompt_order:
        others = last_steps(state.index.ages[GroupPhase.ACCEPTED], plan)
        if in_time(others + Counter(last_step(g, plan) for g in (*accepted, group)), state.next_step, plan):
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

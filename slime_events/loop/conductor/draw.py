"""Backpressure as a fold: how many prompts are drawn, and the requests for each."""

import math
from typing import Annotated, Any, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from schemas.arrays import Array
from schemas.doc import doc
from schemas.event import Purpose
from schemas.ids import evaluation_row, is_inbox_group, order_in_group, sample_id, sample_seed
from schemas.recorded import Recalled
from schemas.rollouts import FailureKind, Maker, Place, RolloutRequested
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase, SampleState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.plan import Plan, is_suspended


class ReusedRollout(NamedTuple):
    """A requested sample that a recorded sample of a different run answers."""

    group: GroupState
    sample: SampleState
    recalled: Recalled
    recorded: Annotated[str, doc("the recorded sample, in the other run")]

    @property
    def place(self) -> Place:
        """The place of the sample, as in its request."""
        order, index = self.group.order, order_in_group(self.sample.sample)[0]
        return Place(order * len(self.recalled.samples) + index, order)


def reused_rollouts_due(state: RunState) -> list[ReusedRollout]:
    """Return requested samples whose recorded rollouts are not in the log yet."""
    return [
        ReusedRollout(group, sample, group.recalled, group.recalled.samples[order_in_group(sample.sample)[0]])
        for group in state.index.recalled.values()
        if group.recalled is not UNSET
        for sample in group.samples.values()
        if sample.phase is SamplePhase.REQUESTED
    ]


RETRYABLE = (FailureKind.ENGINE, FailureKind.AGENT)


def groups_to_request(state: RunState, plan: Plan) -> int:
    """Return the number of groups to request now.

    It is 0 if a rollout function makes the rollouts, while `open = requested - (trained + rejected)` fills `plan.room`,
    and while rollouts are suspended. Otherwise it is the number of missing groups, up to what the run still needs; with
    a draw size, it is slime's rule: whole draws until there are enough.
    """
    if plan.by_function:
        return 0
    missing = plan.room - state.open_groups
    needed = groups_needed(state, plan)
    if missing <= 0 or needed <= 0 or is_suspended(state.next_step, state, plan):
        return 0
    if plan.draw is None:
        return min(missing, needed)
    return math.ceil(missing / plan.draw) * plan.draw


def groups_needed(state: RunState, plan: Plan) -> int:
    """Return the groups that the run still has to request, if all open ones are trained."""
    return (plan.steps - state.next_step) * plan.groups - state.unsealed_groups


def requests_for(
    group: str, prompt: Array, plan: Plan, *, evaluation: str | None = None, version: int, order: int = -1
) -> list[RolloutRequested]:
    """Return a request per sample of a group, for weights `version` or newer; an evaluation is of that version.

    evaluation: its data set. order: index of the group among the run's training groups.
    """
    samples = plan.samples if evaluation is None else plan.eval_of(evaluation).samples
    return [
        _request(group, prompt, sample_id(group, index), plan, evaluation, version, order, min_version=version)
        for index in range(samples)
    ]


def _request(
    group: str, prompt: Array, sample: str, plan: Plan, evaluation: str | None, version: int, order: int, **more: Any
) -> RolloutRequested:
    """Return a request. version: version under evaluation; exact evaluations allow no newer weights."""
    training, (index, _) = evaluation is None, order_in_group(sample)
    return RolloutRequested(
        sample=sample,
        group=group,
        index=index,
        place=_place(group, index, order, plan, evaluation),
        prompt=prompt,
        sampling=plan.sampling if evaluation is None else plan.eval_of(evaluation).sampling_for(prompt.n),
        seed=sample_seed(plan.seed, sample),
        purpose=Purpose.TRAIN if training else Purpose.EVAL,
        max_version=None if training or not plan.eval_exact else version,
        maker=plan.maker,
        **more,
    )


def _place(group: str, index: int, order: int, plan: Plan, evaluation: str | None) -> Place | None:
    if evaluation is None:
        return Place(order * plan.samples + index, order) if order >= 0 else None
    row = evaluation_row(group)
    return None if row is None else Place(row * plan.eval_of(evaluation).samples + index)


def requests_of(group: GroupState, state: RunState, plan: Plan, order: int) -> list[RolloutRequested]:
    """Return the requests of a submitted training group: to engines, or for the recorded samples that answer them."""
    requests = requests_for(group.group, group.prompt, plan, version=state.published, order=order)
    if group.recalled is UNSET:
        return requests
    maker = Maker.OUTSIDE if is_inbox_group(group.group) else Maker.RECORDED
    pairs = zip(requests, group.recalled.samples, strict=False)
    return [
        replace(request, min_version=group.recalled.oldest, recalls=sample, maker=maker) for request, sample in pairs
    ]


def requests_missing(state: RunState, plan: Plan) -> list[RolloutRequested]:
    """Return requests that a lost conductor did not append for groups with other requests, for the same weights."""
    if plan.by_function:
        return []
    return [
        replace(request, min_version=group.version)
        for group in state.in_phase(GroupPhase.REQUESTED)
        for request in requests_of(group, state, plan, group.order)
        if request.sample not in group.samples
    ]


def requests_again(state: RunState, plan: Plan, *, training: bool) -> list[RolloutRequested]:
    """Return new requests for suspended rollouts and for failed ones with attempts left; they keep their tokens.

    training: include training rollouts, not only evaluations.
    """
    requests = []
    suspended, failed, index = SamplePhase.SUSPENDED, SamplePhase.FAILED, state.index
    training = training and not plan.by_function
    groups = index.failed | index.suspended[Purpose.EVAL] | (index.suspended[Purpose.TRAIN] if training else {})
    for group in sorted(groups.values(), key=lambda group: group.position):
        if group.purpose is Purpose.TRAIN and not training:
            continue
        for sample in group.samples.values():
            if sample.phase is suspended:
                min_version = state.published
            elif sample.phase is failed and may_retry(sample, plan):
                min_version = max(sample.min_version, 0)
            else:
                continue
            masks = plan.mask_offpolicy and sample.suspensions > 0
            more: dict[str, Any] = {"min_version": min_version, "attempt": sample.attempt + 1, "mask_older": masks}
            evaluation = None if group.purpose is Purpose.TRAIN else group.dataset
            about = (group.group, group.prompt, sample.sample, plan, evaluation, group.version, group.order)
            requests.append(_request(*about, **more))
    return requests


def may_retry(sample: SampleState, plan: Plan) -> bool:
    """Return whether the engine caused a failure and attempts are left. A suspension is not an attempt."""
    return sample.failed_as in RETRYABLE and sample.failures < plan.max_attempts

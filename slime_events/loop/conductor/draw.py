"""How many prompts are drawn, and the requests for each: backpressure as a fold."""

import hashlib
import math
from typing import Any, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from schemas.arrays import Array
from schemas.event import Purpose
from schemas.ids import evaluation_row, order_in_group, sample_id
from schemas.recorded import Recalled
from schemas.rollouts import FailureKind, Place, RolloutRequested
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase, SampleState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.plan import Plan, is_suspended


class ReusedRollout(NamedTuple):
    """A requested sample, and `recorded`: the sample of the other run that answers it."""

    group: GroupState
    sample: SampleState
    recalled: Recalled
    recorded: str

    @property
    def place(self) -> Place:
        """The sample's, as it is requested."""
        order, index = self.group.order, order_in_group(self.sample.sample)[0]
        return Place(order * len(self.recalled.samples) + index, order)


def reused_rollouts_due(state: RunState) -> list[ReusedRollout]:
    """Requested samples whose recorded rollouts are not in the log yet."""
    return [
        ReusedRollout(group, sample, group.recalled, group.recalled.samples[order_in_group(sample.sample)[0]])
        for group in state.in_phase(GroupPhase.REQUESTED)
        if group.recalled is not UNSET
        for sample in group.samples.values()
        if sample.phase is SamplePhase.REQUESTED
    ]


RETRYABLE = (FailureKind.ENGINE, FailureKind.AGENT)


def groups_to_request(state: RunState, plan: Plan) -> int:
    """Groups to request now.

    None where a rollout function answers them, while `open = requested - (trained + rejected)` fills `plan.room`, or
    while rollouts are suspended. Otherwise the missing ones, at most as many as the run still needs; with a draw size,
    slime's rule: whole draws until there are enough.
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
    """Groups that the run still has to request, if all open ones are trained."""
    return (plan.steps - state.next_step) * plan.groups - state.unsealed_groups


def sample_seed(seed: int, sample: str) -> int:
    """A seed of 31 bits that depends on the run's seed and the sample alone."""
    digest = hashlib.blake2b(f"{seed}:{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF


def requests_for(
    group: str, prompt: Array, plan: Plan, *, evaluation: str | None = None, version: int, order: int = -1
) -> list[RolloutRequested]:
    """A request per sample of a group, for weights `version` or newer; an evaluation is of that version.

    evaluation: its data set. order: of the group among the run's training groups.
    """
    samples = plan.samples if evaluation is None else plan.eval_of(evaluation).samples
    return [
        _request(group, prompt, sample_id(group, index), plan, evaluation, version, order, min_version=version)
        for index in range(samples)
    ]


def _request(
    group: str, prompt: Array, sample: str, plan: Plan, evaluation: str | None, version: int, order: int, **more: Any
) -> RolloutRequested:
    """version: that an evaluation is of; where evaluations are exact, no newer weights may make its answers."""
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
        agents=plan.agents,
        **more,
    )


def _place(group: str, index: int, order: int, plan: Plan, evaluation: str | None) -> Place | None:
    if evaluation is None:
        return Place(order * plan.samples + index, order) if order >= 0 else None
    row = evaluation_row(group)
    return None if row is None else Place(row * plan.eval_of(evaluation).samples + index)


def requests_of(group: GroupState, state: RunState, plan: Plan, order: int) -> list[RolloutRequested]:
    """The requests of a submitted training group: to engines, or each for the recorded sample that answers it."""
    requests = requests_for(group.group, group.prompt, plan, version=state.published, order=order)
    if group.recalled is UNSET:
        return requests
    pairs = zip(requests, group.recalled.samples, strict=False)
    return [replace(request, min_version=group.recalled.oldest, recalls=sample) for request, sample in pairs]


def requests_missing(state: RunState, plan: Plan) -> list[RolloutRequested]:
    """The missing requests of groups that a lost conductor had requested in part, for the same weights."""
    if plan.by_function:
        return []
    return [
        replace(request, min_version=group.version)
        for group in state.in_phase(GroupPhase.REQUESTED)
        for request in requests_of(group, state, plan, group.order)
        if request.sample not in group.samples
    ]


def requests_again(state: RunState, plan: Plan, *, training: bool) -> list[RolloutRequested]:
    """New requests for suspended rollouts and for failed ones that may be retried; their tokens stay. training: include
    training rollouts, not only evaluations."""
    found = []
    suspended, failed, requested = SamplePhase.SUSPENDED, SamplePhase.FAILED, GroupPhase.REQUESTED
    for group in state.index.begun:
        if group.phase is not requested or (group.purpose is Purpose.TRAIN and (plan.by_function or not training)):
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
            found.append(_request(*about, **more))
    return found


def may_retry(sample: SampleState, plan: Plan) -> bool:
    """Whether a failure was the engine's and attempts are left. A suspension is no attempt."""
    return sample.failed_as in RETRYABLE and sample.failures < plan.max_attempts

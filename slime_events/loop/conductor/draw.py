"""How many prompts to draw, and what is asked of the engines for each: backpressure as a fold."""

from __future__ import annotations

import hashlib
import math

import msgspec

from schemas.arrays import Array
from schemas.event import Purpose
from schemas.ids import place_of, sample_id
from schemas.rollouts import FailureKind, RolloutRequested, Sampling
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase, SampleState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.boundary import rests
from slime_events.loop.conductor.plan import Plan
from slime_events.loop.conductor.recall import as_recalls

RETRYABLE = (FailureKind.ENGINE,)


def groups_to_request(state: RunState, plan: Plan) -> int:
    """Groups to ask for now.

    Nothing while `open = requested - (trained + rejected)` fills `plan.room`; otherwise what is missing, or slime's
    rule where a draw size was given: whole draws until there is enough. Never more than the run still needs, and
    nothing while rollouts rest.
    """
    missing = plan.room - state.open_groups
    needed = groups_needed(state, plan)
    if missing <= 0 or needed <= 0 or rests(state.next_step, state, plan):
        return 0
    if plan.draw is None:
        return min(missing, needed)
    return math.ceil(missing / plan.draw) * plan.draw


def groups_needed(state: RunState, plan: Plan) -> int:
    """Groups that the run still has to ask for, if all that are open are trained."""
    return (plan.steps - state.next_step) * plan.groups - state.unsealed_groups


def sample_seed(seed: int, sample: str) -> int:
    """A seed of 31 bits that depends on the run's seed and the sample alone."""
    digest = hashlib.blake2b(f"{seed}:{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFFFFFF


def requests_for(
    group: str,
    prompt: Array,
    *,
    samples: int,
    sampling: Sampling,
    seed: int,
    min_version: int,
    purpose: Purpose,
    max_version: int | None = None,
) -> list[RolloutRequested]:
    """One request per sample of a group."""
    return [
        RolloutRequested(
            sample=sample_id(group, index),
            group=group,
            index=index,
            prompt=prompt,
            sampling=sampling,
            seed=sample_seed(seed, sample_id(group, index)),
            min_version=min_version,
            purpose=purpose,
            max_version=max_version,
        )
        for index in range(samples)
    ]


def training_requests(group: str, prompt: Array, state: RunState, plan: Plan) -> list[RolloutRequested]:
    """The requests of a training group, to start on the newest published weights or later ones."""
    return requests_for(
        group,
        prompt,
        samples=plan.samples,
        sampling=plan.sampling,
        seed=plan.seed,
        min_version=state.published,
        purpose=Purpose.TRAIN,
    )


def requests_of(group: GroupState, state: RunState, plan: Plan) -> list[RolloutRequested]:
    """The requests of a training group that the log has: to engines, or for what is recorded."""
    requests = training_requests(group.group, group.prompt, state, plan)
    return requests if group.recalled is msgspec.UNSET else as_recalls(requests, group.recalled)


def requests_missing(state: RunState, plan: Plan) -> list[RolloutRequested]:
    """Of groups that a conductor had asked for in part when it was lost: the other requests, for the same weights."""
    found: list[RolloutRequested] = []
    for group in state.in_phase(GroupPhase.REQUESTED):
        requests = requests_of(group, state, plan)
        missing = [one for one in requests if one.sample not in group.samples]
        found += [msgspec.structs.replace(one, min_version=group.version) for one in missing]
    return found


def requests_again(state: RunState, plan: Plan, *, training: bool) -> list[RolloutRequested]:
    """Rollouts that rest, and failed ones that may be tried again; what they had stays. training: not only evals."""
    found = []
    suspended, failed, requested = SamplePhase.SUSPENDED, SamplePhase.FAILED, GroupPhase.REQUESTED
    for group in state.groups.values():
        if group.phase is not requested or (group.purpose is Purpose.TRAIN and not training):
            continue
        for sample in group.samples.values():
            phase = sample.phase
            if phase is suspended:
                found.append(_again(group, sample, plan, min_version=state.published))
            elif phase is failed and may_retry(sample, plan):
                found.append(_again(group, sample, plan, min_version=max(sample.min_version, 0)))
    return found


def may_retry(sample: SampleState, plan: Plan) -> bool:
    """Whether a failure was the engine's and tries are left. A rest is no try."""
    return sample.failed_as in RETRYABLE and sample.failures < plan.max_attempts


def exact_version(version: int, plan: Plan) -> int | None:
    """The newest weights that may make an answer of an evaluation of `version`; None where any may."""
    return version if plan.eval_exact else None


def _again(group: GroupState, sample: SampleState, plan: Plan, *, min_version: int) -> RolloutRequested:
    training = group.purpose is Purpose.TRAIN
    return RolloutRequested(
        sample=sample.sample,
        group=group.group,
        index=place_of(sample.sample)[0],
        prompt=group.prompt,
        sampling=plan.sampling if training else (plan.eval_sampling or plan.sampling),
        seed=sample_seed(plan.seed, sample.sample),
        min_version=min_version,
        attempt=sample.attempt + 1,
        max_version=None if training else exact_version(group.version, plan),
        purpose=group.purpose,
        mask_older=plan.mask_offpolicy and sample.suspensions > 0,
    )

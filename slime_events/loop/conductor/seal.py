"""When a batch is sealed, and with which groups: in prompt order, or those with the fewest steps left first.

No sample exceeds the staleness bound. A batch waits if sealing it would leave no step in time for a group that is still
being generated. Backpressure guarantees such a step if no younger group takes it.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, islice

from schemas.batches import BatchSealed
from schemas.groups import GroupAccepted, GroupRejected
from slime_events.core.state.group import GroupPhase, GroupState, SamplePhase, SampleState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.accept import Verdict
from slime_events.loop.conductor.plan import Plan, at_boundary, in_time, is_suspended, last_step, last_steps
from slime_events.plugins.post_process import PostProcess, Processed

Normalise = Callable[[Sequence[float], Sequence[int]], list[float]]
"""(raw rewards, group sizes) -> rewards normalised over their groups, from which advantages are computed."""
_IN_PROGRESS = frozenset({SamplePhase.REQUESTED, SamplePhase.RUNNING})


def seal(
    state: RunState,
    plan: Plan,
    decided: Sequence[Verdict],
    normalise: Normalise,
    post_process: PostProcess | None = None,
) -> list[BatchSealed]:
    """Return the next batch, if it is full and sealing it makes no group too stale.

    decided: verdicts of this cycle. post_process: replaces `normalise`. Raises PlugPointError.
    """
    step = state.next_step
    if step >= plan.steps or at_boundary(step, state, plan):
        return []
    if plan.by_function:
        return _seal_returned(state, decided, normalise, post_process)
    accepted = [verdict.group for verdict in decided if isinstance(verdict, GroupAccepted)]
    if len(state.accepted) + len(accepted) < plan.groups:
        return []
    index, fresh = state.index, {verdict.group for verdict in decided}
    now_decided = Counter(last_step(state.groups[name], plan) for name in fresh)
    undecided = last_steps(index.ages[GroupPhase.REQUESTED], plan) - now_decided
    if not in_time(undecided, step + 1, plan):  # much faster than with the accepted groups that are left
        return []
    if undecided and not in_time(_left(accepted, state, plan) + undecided, step + 1, plan):
        return []
    candidates = [state.groups[name] for name in (*state.accepted, *accepted)]
    if not plan.in_prompt_order:
        candidates.sort(key=lambda group: last_step(group, plan))
    in_progress = (
        sample.phase in _IN_PROGRESS
        for name, group in index.requested.items()
        if name not in fresh
        for sample in group.samples.values()
    )
    suspends = is_suspended(step + 1, state, plan) and any(in_progress)
    return [_of_groups(step, candidates[: plan.groups], normalise, post_process, suspends=suspends)]


def _left(accepted: Sequence[str], state: RunState, plan: Plan) -> Counter[int]:
    """Return the last steps of the accepted groups that the next batch leaves. accepted: those of this cycle."""
    left = last_steps(state.index.ages[GroupPhase.ACCEPTED], plan)
    left.update(last_step(state.groups[name], plan) for name in accepted)
    if plan.in_prompt_order:
        taken = islice(chain(state.accepted, accepted), plan.groups)
        return left - Counter(last_step(state.groups[name], plan) for name in taken)
    places = plan.groups
    for last in sorted(left):
        count = min(left[last], places)
        left[last] -= count
        places -= count
    return left


def _seal_returned(
    state: RunState, decided: Sequence[Verdict], normalise: Normalise, post_process: PostProcess | None
) -> list[BatchSealed]:
    """Return the batch of all groups that a rollout function returned for the next step, without rejected ones."""
    step, rejected = state.next_step, {verdict.group for verdict in decided if isinstance(verdict, GroupRejected)}
    accepted = {*state.accepted, *(verdict.group for verdict in decided if isinstance(verdict, GroupAccepted))}
    names = [name for name in state.by_function.returned.get(step, ()) if name not in rejected]
    if not names or not accepted.issuperset(names):
        return []
    return [_of_groups(step, [state.groups[name] for name in names], normalise, post_process)]


def _of_groups(
    step: int,
    groups: Sequence[GroupState],
    normalise: Normalise,
    post_process: PostProcess | None,
    *,
    suspends: bool = False,
) -> BatchSealed:
    members = [(group.group, tuple(group.samples.values())) for group in groups]
    oldest = min(group.oldest for group in groups)
    processed = post_process(groups) if post_process is not None else None
    return make_sealed(step, members, normalise, oldest=oldest, suspends=suspends, processed=processed)


def make_sealed(
    step: int,
    groups: Sequence[tuple[str, Sequence[SampleState]]],
    normalise: Normalise,
    *,
    oldest: int,
    suspends: bool = False,
    processed: Processed | None = None,
) -> BatchSealed:
    """Return the batch of these groups, each with its graded samples, in their order.

    oldest: oldest weight version in the batch. processed: the rewards, if a user's function made them.
    """
    samples = [sample for _, members in groups for sample in members]
    raw: Sequence[float] = [float(sample.reward) for sample in samples if sample.reward is not None]
    if processed is not None:
        raw, rewards = processed.raw, processed.rewards
    else:
        rewards = tuple(normalise(raw, [len(members) for _, members in groups]))
    return BatchSealed(
        step=step,
        groups=tuple(group for group, _ in groups),
        samples=tuple(sample.sample for sample in samples),
        rewards=rewards,
        raw_rewards=tuple(raw),
        digest=batch_digest(step, [(s.sample, s.digest, r) for s, r in zip(samples, rewards, strict=True)]),
        oldest_version=oldest,
        suspends=suspends,
        post_process=processed.function if processed else "",
        post_process_digest=processed.digest if processed else "",
    )


def batch_digest(step: int, lines: Sequence[tuple[str, str, float]]) -> str:
    """Return sha256 over the step and a line (sample, content digest, reward) per sample, in order; hex."""
    text = "\n".join([str(step), *(f"{sample} {digest} {reward!r}" for sample, digest, reward in lines)])
    return hashlib.sha256(text.encode()).hexdigest()

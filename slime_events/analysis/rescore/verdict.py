"""The verdict on a recorded group, had its rewards or the filter been otherwise. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from schemas.arrays import EMPTY_TOKENS
from schemas.errors import PlugPointError
from schemas.groups import GroupAccepted, RejectionCause
from slime_events.analysis.rescore.bulk_grading import Given, Missing
from slime_events.analysis.rescore.collect import Group
from slime_events.core.state.group import GroupState, SampleState
from slime_events.loop.conductor.accept import GroupFilter

BEYOND = (RejectionCause.ROLLOUT_FAILED, RejectionCause.STALE)
"""Rejections that no reward and no filter has a part in."""


class Verdict(NamedTuple):
    """cause, reason: as in the event. fallback: the filter left it to what else there was."""

    accepted: bool
    cause: RejectionCause | None = None
    reason: str | None = None
    fallback: bool = False


def recorded_verdict(group: Group) -> Verdict:
    """As the log has it."""
    said = group.verdict
    assert said is not None, "an evaluation's group has no verdict"
    if isinstance(said, GroupAccepted):
        return Verdict(True, reason=said.reason)
    return Verdict(False, said.cause, said.reason)


def verdict_on(group: Group, given: Sequence[Given], judge: GroupFilter | None) -> Verdict:
    """The verdict that these rewards call for. given: one per rollout, in the group's order. judge: the filter.

    Whether a group that the filter would drop fills a step all the same (slime's fallback) hangs on how many others
    there were at that moment: there it is as it was, where the filter had a say in what was, and else rejected.
    """
    before = recorded_verdict(group)
    if before.cause in BEYOND:
        return before
    for sample, one in zip(group.rollouts, given, strict=True):
        if isinstance(one, Missing):
            return Verdict(False, RejectionCause.REWARD_FAILED, f"{sample}: {one.kind}: {one.message}")
    if judge is None:
        return Verdict(True)
    rewards = [one for one in given if not isinstance(one, Missing)]
    try:
        decision = judge(_state(group, rewards))
    except PlugPointError as error:
        return Verdict(False, RejectionCause.FILTER_RAISED, str(error))
    if decision.keep:
        return Verdict(True, reason=decision.reason)
    reason = decision.reason or "the filter gave no reason"
    fills = decision.keep_when_insufficient and before.accepted
    return Verdict(fills, None if fills else RejectionCause.FILTER, reason, fallback=decision.keep_when_insufficient)


def _state(group: Group, rewards: Sequence[float]) -> GroupState:
    """The group as the run's filter was shown it, with these rewards."""
    prompt = group.prompt
    samples = {}
    for (name, rollout), reward in zip(group.rollouts.items(), rewards, strict=True):
        done = rollout.completed
        state = SampleState(sample=name, length=done.length, stop=done.stop, text=done.text, reward=reward)
        state.prompt_text = done.prompt_text or msgspec.UNSET
        state.add_spans(done.spans)
        samples[name] = state
    return GroupState(
        group=prompt.group,
        prompt=EMPTY_TOKENS,
        order=group.order,
        text=prompt.text,
        label=prompt.label,
        metadata=prompt.metadata,
        samples=samples,
    )

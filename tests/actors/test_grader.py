"""The grader's state and its fence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from actors.grader import Grader
from schemas.event import Event
from schemas.groups import RejectionCause
from schemas.rewards import RewardAssigned, RewardFailed, RewardFailureKind
from schemas.rollouts import RolloutCompleted
from slime_events.core.run.participant import Participant
from slime_events.loop.training.pending_rewards import PendingRewards
from slime_events.plugins.rewards.outcome import Outcome, RewardFailure
from slime_events.plugins.sample import Sample
from storage.follow import Follower
from storage.group_commit import GroupCommit
from storage.log import once
from storage.memory_log import MemoryLog
from tests import made
from tests.simulation.parts import InstantPool


def completed(sample: str) -> RolloutCompleted:
    return made.completed(sample, length=0, text=sample)


async def folded(events: list[Event], *, whole_groups: bool = False) -> tuple[PendingRewards, MemoryLog]:
    log = MemoryLog("g")
    worker = Participant(log, "test")
    ungraded = PendingRewards(whole_groups=whole_groups)
    for event in events:
        await log.append([once(worker.enclose(event))])
        ungraded.apply(log.records[-1])
    return ungraded, log


def due(ungraded: PendingRewards) -> list[tuple[str, list[str]]]:
    return [(group, list(samples)) for group, samples in ungraded.take()]


BEGUN = [made.submitted(), made.requested("g-s0"), made.requested("g-s1")]


async def test_samples_are_due_once() -> None:
    ungraded, log = await folded([*BEGUN, completed("g-s0")])
    assert due(ungraded) == [("g", ["g-s0"])]
    assert due(ungraded) == []
    log.records.clear()
    ungraded.apply((await folded([completed("g-s1")]))[1].records[0])
    assert due(ungraded) == [("g", ["g-s1"])]


async def test_whole_groups_are_due_when_they_are_whole() -> None:
    ungraded, _ = await folded([*BEGUN, completed("g-s1")], whole_groups=True)
    assert due(ungraded) == []
    ungraded.apply((await folded([completed("g-s0")]))[1].records[0])
    assert due(ungraded) == [("g", ["g-s0", "g-s1"])]


@pytest.mark.parametrize(
    "last",
    [
        made.assigned(grader=""),
        made.rejected(cause=RejectionCause.ROLLOUT_FAILED),
    ],
)
async def test_what_has_a_reward_or_lost_its_group_is_not_due(last: Event) -> None:
    ungraded, _ = await folded([*BEGUN, completed("g-s0"), last])
    assert due(ungraded) == []


async def test_an_end_after_the_group_s_is_passed_over() -> None:
    rejected = made.rejected(cause=RejectionCause.ROLLOUT_FAILED)
    ungraded, _ = await folded([*BEGUN, rejected, completed("g-s0")])
    assert due(ungraded) == []


END = made.finished(steps=0, events=0)


async def test_two_graders_never_say_two_things_of_a_sample() -> None:
    """One fails what the other rewards: the first is right."""
    _, log = await folded([*BEGUN, completed("g-s0"), completed("g-s1")])
    failure = RewardFailure(kind=RewardFailureKind.RAISED, message="no")
    both_graded = asyncio.Barrier(2)

    class Together(InstantPool):
        async def grade(self, samples: Sequence[Sample], *, evaluation: bool = False) -> list[Outcome]:
            await both_graded.wait()
            return await super().grade(samples, evaluation=evaluation)

    async with asyncio.timeout(60), GroupCommit(log) as first, GroupCommit(log) as other:
        graders = [
            Grader(Participant(log, "grader"), Together(), first, whole_groups=False),  # type: ignore[arg-type]
            Grader(Participant(log, "grader"), Together(lambda _: failure), other, whole_groups=False),  # type: ignore[arg-type]
        ]
        tasks = [asyncio.create_task(grader.run()) for grader in graders]
        async with Follower(log, len(log.records) + 1) as follower:
            await follower.next(60.0)
        await Participant(log, "conductor").append([END])
        await asyncio.gather(*tasks)
    graded = [r.envelope.event for r in log.records if isinstance(r.envelope.event, RewardAssigned | RewardFailed)]
    assert sorted(event.sample for event in graded) == ["g-s0", "g-s1"]


async def test_gradings_under_way_end_with_the_run() -> None:
    _, log = await folded([*BEGUN, completed("g-s0")])
    begun, ended = asyncio.Event(), asyncio.Event()

    class Stuck(InstantPool):
        async def grade(self, samples: Sequence[Sample], *, evaluation: bool = False) -> list[Outcome]:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return []

    async with asyncio.timeout(60), GroupCommit(log) as commit:
        grader = asyncio.create_task(Grader(Participant(log, "g"), Stuck(), commit, whole_groups=False).run())  # type: ignore[arg-type]
        await begun.wait()
        await Participant(log, "conductor").append([END])
        await grader
    assert ended.is_set()

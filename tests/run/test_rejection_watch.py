"""Why groups are rejected: counted without ids, and said while it happens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from schemas.event import Event
from schemas.groups import GroupRejected, RejectionCause
from slime_events.app.launch.supervisor import RejectionWatch
from slime_events.core.state.run import RunState
from slime_events.model.rejections import Reason, Rejections, reason_of
from tests import made

NINES = "raised: the grader rewards2.py:f raised ValueError: no nines (rewards2.py:4)"


def failed(number: int, why: str = NINES) -> GroupRejected:
    """Reject a group whose second sample has no reward, as the conductor does."""
    group = f"train-0-{number:06d}"
    samples = tuple(f"{group}-s{index}" for index in range(12))
    return made.rejected(group, RejectionCause.REWARD_FAILED, reason=f"{samples[1]}: {why}", samples=samples)


def dropped(number: int) -> GroupRejected:
    group = f"train-0-{number:06d}"
    return made.rejected(group, reason="zero_std_0.0", samples=(f"{group}-s0",))


def news(events: Sequence[Event]) -> list[str]:
    watch = RejectionWatch(RunState(run="r"))
    return [text for event in events if (text := watch.apply(event)) is not None]


def test_a_reason_is_the_same_for_every_sample_and_group() -> None:
    assert reason_of(failed(1)) == reason_of(failed(2)) == Reason(RejectionCause.REWARD_FAILED, NINES)
    group = failed(3)
    within = made.rejected(
        group.group,
        RejectionCause.FILTER_RAISED,
        reason=f"{group.group}: {group.samples[11]} and {group.samples[1]} differ",
        samples=group.samples,
    )
    assert reason_of(within).text == "<group>: <sample> and <sample> differ"
    late = [
        made.rejected(cause=RejectionCause.STALE, reason=f"step {n} is the first", figures={"step": n}) for n in (4, 5)
    ]
    assert reason_of(late[0]) == reason_of(late[1])


def test_the_commonest_reason_has_its_count() -> None:
    rejections = Rejections()
    for number in range(5):
        rejections.apply(failed(number, NINES if number else "timeout"))
    assert (rejections.total, rejections.failed) == (5, 5)
    assert rejections.commonest() == f"reward failed, {NINES}, 4 x, and 1 other reason"


def test_the_first_group_that_fails_is_said_and_not_each() -> None:
    texts = news([made.accepted("train-0-000000"), *(failed(number) for number in range(1, 13))])
    assert [text.partition(":")[0] for text in texts] == ["1 of 2 groups rejected", "10 of 11 groups rejected"]
    assert all(NINES in text for text in texts)


@pytest.mark.parametrize(("groups", "words"), [(9, 0), (10, 1), (99, 1), (100, 2)])
def test_of_a_filter_there_is_a_word_once_it_has_dropped_many(groups: int, words: int) -> None:
    assert len(news([dropped(number) for number in range(groups)])) == words

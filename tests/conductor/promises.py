"""Check what holds of every driven run, in any order: room, fates, batches, rests."""

from __future__ import annotations

from collections import Counter

from schemas.batches import BatchSealed
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.rollouts import RolloutFailed, RolloutRequested, RolloutSuspended
from schemas.steps import StepCommitted
from slime_events.core.state.group import GroupPhase
from tests.conductor.driver import Driver


def within_room(driver: Driver) -> None:
    assert driver.state.open_groups <= driver.plan.room
    states = driver.state.groups.values()
    assert driver.state.open_groups == sum(g.purpose == "train" and g.phase != GroupPhase.SUBMITTED for g in states)


def nothing_is_lost(driver: Driver) -> None:
    """Every sample that was asked for is trained, or its group rejected with a reason, or it is still there."""
    trained = {sample for batch in driver.batches for sample in batch.samples}
    rejected = {event.group: event for event in driver.events(GroupRejected)}
    assert all(event.reason for event in rejected.values())
    open_samples = {s for g in driver.state.groups.values() if g.purpose == "train" for s in g.samples}
    requests = [event for event in driver.events(RolloutRequested) if event.purpose == "train"]
    for event in requests:
        fates = (event.sample in trained, event.group in rejected, event.sample in open_samples - trained)
        assert sum(fates) == 1, (event.sample, fates)
    attempts = Counter(event.sample for event in requests)
    ended = Counter(event.sample for event in driver.events(RolloutFailed) + driver.events(RolloutSuspended))
    for sample, count in attempts.items():
        assert 0 <= count - ended[sample] <= 1, "asked for once, and once more after each failure or rest"


def check_batches(driver: Driver) -> None:
    """Exactly as many batches as steps, full, of accepted groups, each sealed once, none beyond the bound."""
    plan, batches = driver.plan, driver.batches
    assert [batch.step for batch in batches] == list(range(plan.steps))
    sealed = [group for batch in batches for group in batch.groups]
    assert len(set(sealed)) == len(sealed) == plan.steps * plan.groups
    accepted = [event.group for event in driver.events(GroupAccepted)]
    assert set(sealed) <= set(accepted)
    assert len(set(accepted)) == len(accepted)
    for batch in batches:
        assert len(batch.groups) == plan.groups
        assert len(set(batch.samples)) == plan.groups * plan.samples
        assert batch.step - batch.oldest_version <= plan.staleness_bound
    left = set(accepted) - set(sealed)
    assert left == set(driver.state.accepted)
    nothing_is_lost(driver)


def rests_end_in_time(driver: Driver) -> None:
    """A rollout rests only after a batch that suspends, and is asked for again once a batch may be sealed again."""
    resting: dict[str, int] = {}
    rested: set[str] = set()
    next_step = version = boundary = 0
    for recorded in driver.log:
        event = recorded.envelope.event
        match event:
            case BatchSealed():
                next_step = event.step + 1
                boundary = recorded.position if event.suspends else boundary
                assert not event.suspends or next_step > version + driver.plan.max_staleness
            case StepCommitted():
                version = event.version
            case RolloutSuspended():
                resting[event.sample] = event.attempt
                rested.add(event.sample)
            case RolloutRequested() if event.sample in resting:
                assert event.attempt == resting.pop(event.sample) + 1
                assert next_step <= version + driver.plan.max_staleness
                assert event.mask_older is driver.plan.mask_offpolicy
            case RolloutRequested():
                assert not event.mask_older or event.sample in rested
    assert driver.plan.partial_rollout or not (boundary or rested)


def none_is_stale(driver: Driver) -> None:
    """Sealing waits, so that no group falls behind the bound where engines run the weights that they are asked for."""
    assert RejectionCause.STALE not in driver.state.rejections

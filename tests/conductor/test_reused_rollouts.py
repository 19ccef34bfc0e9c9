"""Groups of recorded rollouts: what is asked for, what is to be read, and how long they may wait."""

from __future__ import annotations

import msgspec
import pytest

from schemas.prompts import Source
from schemas.recorded import CommonVersion, Recalled
from schemas.rollouts import Maker, RolloutRequested
from slime_events.loop.conductor.draw import reused_rollouts_due
from slime_events.loop.conductor.plan import bound_of, last_step
from tests import made
from tests.conductor.driver import Driver, make_plan

RECALLED = Recalled(run="p", samples=("x-s0", "x-s1"), common=CommonVersion(5, 5), oldest=-2, bound=7)


@pytest.fixture
def driver() -> Driver:
    """An outside prompt that is answered by what is recorded, and one that is not."""
    driver = Driver(make_plan(groups=3, samples=2, steps=1))
    driver.state.groups.clear()
    driver.requests.clear()
    driver.state.counts = type(driver.state.counts)()
    for group, recalled in (("mine", RECALLED), ("fresh", None)):
        driver.say(made.submitted(group, source=Source(path="a", key="k"), recalled=recalled))
    driver.settle()
    return driver


def test_each_request_names_the_recorded_sample_that_answers_it(driver: Driver) -> None:
    recalled = {
        event.sample: (event.maker, event.recalls, event.min_version) for event in driver.events(RolloutRequested)
    }
    recorded = Maker.RECORDED
    assert (recalled["mine-s0"], recalled["mine-s1"]) == ((recorded, "x-s0", -2), (recorded, "x-s1", -2))
    assert recalled["fresh-s0"] == (Maker.ENGINE, "", 0)


def test_what_is_to_be_read_is_what_was_asked_for_and_has_not_come(driver: Driver) -> None:
    assert [(due.sample.sample, due.recorded) for due in reused_rollouts_due(driver.state)] == [
        ("mine-s0", "x-s0"),
        ("mine-s1", "x-s1"),
    ]
    driver.complete("mine-s0")
    (left,) = reused_rollouts_due(driver.state)
    assert (left.group.group, left.sample.sample, left.recorded, left.recalled) == ("mine", "mine-s1", "x-s1", RECALLED)


def test_recorded_rollouts_have_a_bound_of_their_own(driver: Driver) -> None:
    plan = msgspec.structs.replace(driver.plan, max_staleness=1)
    mine, fresh = driver.state.groups["mine"], driver.state.groups["fresh"]
    assert (bound_of(mine, plan), bound_of(fresh, plan)) == (7, 1)
    assert (mine.oldest, last_step(mine, plan), last_step(fresh, plan)) == (-2, 5, 1)

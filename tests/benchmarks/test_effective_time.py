"""The arithmetic of effective training time."""

from __future__ import annotations

import pytest

from benchmarks.effective_time import MACHINES, StepSeconds, effective, faults, step_seconds
from schemas.event import Event
from storage.log import Recorded
from tests import made
from tests.harness.chaos.killer import Struck
from tests.harness.chaos.schedule import Kind

SECOND = 1_000_000_000


def test_a_tenth_of_the_steps_is_hit_and_machines_take_turns() -> None:
    strikes = faults(40, 0.1, seed=3, within_s=5.0)
    assert len(strikes) == len({strike.after_version for strike in strikes}) == 4
    assert all(1 <= strike.after_version < 39 and 0 <= strike.delay_s <= 5 for strike in strikes)
    assert {strike.kind for strike in strikes[:2]} == set(MACHINES)


def test_steps_are_hit_by_the_kills_that_fall_into_them() -> None:
    log = [_at(10, made.activated()), _commit(14, 0), _commit(24, 1)]
    struck = [Struck(0, Kind.TRAINER, 1, 15 * SECOND, 0, 0)]
    steps = step_seconds(log, struck)
    assert [(step.seconds, step.hit) for step in steps] == [(pytest.approx(4.0), False), (pytest.approx(10.0), True)]
    assert effective(steps) == pytest.approx(8 / 14)
    assert effective(steps, longer_s=96.0) == pytest.approx(200 / 206)


def test_nothing_is_lost_without_faults() -> None:
    assert effective([StepSeconds(2.0, hit=False), StepSeconds(4.0, hit=False)]) == 1.0


def _commit(at: int, step: int) -> Recorded:
    return _at(at, made.committed(step))


def _at(at: int, event: Event) -> Recorded:
    return made.recorded(event, at=at * SECOND)[0]

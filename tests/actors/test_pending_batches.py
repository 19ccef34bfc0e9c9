"""Test what a trainer holds of the log: rollouts of training, until they are done with."""

from __future__ import annotations

import pytest

from schemas.arrays import unpack
from schemas.event import Event, Purpose
from schemas.rollouts import RolloutRequested
from slime_events.loop.training.pending_batches import PendingBatches
from tests import made


def request(purpose: Purpose = Purpose.TRAIN) -> RolloutRequested:
    return made.requested("s", max_new_tokens=1, purpose=purpose)


REJECTED = made.rejected(reason="", samples=("s",))
SEALED = made.sealed(3, groups=("g",), samples=("s",), rewards=(0.0,), raw_rewards=(0.0,), digest="")


@pytest.mark.parametrize(
    ("events", "is_known"),
    [
        ([request()], True),
        ([request(Purpose.EVAL)], False),
        ([request(), REJECTED], False),
        ([request(), SEALED], True),
    ],
)
def test_who_is_held(events: list[Event], is_known: bool) -> None:
    batches = PendingBatches(unpack, temperature=1.0)
    for position, event in enumerate(events, 1):
        batches.apply(event, position)
    assert batches.knows("s") is is_known


def test_what_was_trained_is_let_go() -> None:
    batches = PendingBatches(unpack, temperature=1.0)
    batches.apply(request(), 1)
    batches.apply(SEALED, 2)
    assert set(batches.sealed) == {3}
    batches.forget(3)
    assert not batches.knows("s")
    assert not batches.sealed

"""What a trainer holds of the log: rollouts of training, until they are done with."""

from __future__ import annotations

import pytest

from schemas.arrays import pack_tokens, unpack
from schemas.batches import BatchSealed
from schemas.event import Event, Purpose
from schemas.groups import GroupRejected, RejectionCause
from schemas.rollouts import RolloutRequested, Sampling
from slime_events.loop.training.pending_batches import PendingBatches


def asked(purpose: Purpose = Purpose.TRAIN) -> RolloutRequested:
    return RolloutRequested(
        sample="s",
        group="g",
        index=0,
        prompt=pack_tokens([1]),
        sampling=Sampling(max_new_tokens=1),
        seed=1,
        purpose=purpose,
    )


REJECTED = GroupRejected(group="g", cause=next(iter(RejectionCause)), reason="", samples=("s",))
SEALED = BatchSealed(step=3, groups=("g",), samples=("s",), rewards=(0.0,), raw_rewards=(0.0,), digest="")


@pytest.mark.parametrize(
    ("events", "known"),
    [([asked()], True), ([asked(Purpose.EVAL)], False), ([asked(), REJECTED], False), ([asked(), SEALED], True)],
)
def test_who_is_held(events: list[Event], known: bool) -> None:
    batches = PendingBatches(unpack, temperature=1.0)
    for position, event in enumerate(events, 1):
        batches.apply(event, position)
    assert batches.knows("s") is known


def test_what_was_trained_is_let_go() -> None:
    batches = PendingBatches(unpack, temperature=1.0)
    batches.apply(asked(), 1)
    batches.apply(SEALED, 2)
    assert set(batches.sealed) == {3}
    batches.forget(3)
    assert not batches.knows("s")
    assert not batches.sealed

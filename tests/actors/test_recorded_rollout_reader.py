"""A recorded rollout is read whole, whatever it was made of."""

from __future__ import annotations

import numpy as np
import pytest

from actors.recorded_rollout_reader import RecordedRolloutReader
from schemas.arrays import pack, pack_tokens, unpack
from schemas.event import Event
from schemas.recorded import CommonVersion, Recalled
from schemas.rollouts import (
    FailureKind,
    RolloutCompleted,
    RolloutFailed,
    StopReason,
    Timings,
    WeightSpan,
)
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.state.group import GroupState, SampleState
from slime_events.core.tokens.trajectory import content_digest
from slime_events.loop.conductor.draw import ReusedRollout
from tests import made

TOKENS, LOG_PROBS = np.arange(6, dtype=np.int32), np.linspace(-1, 0, 6, dtype=np.float32)


def completed(sample: str, start: int, **more: object) -> RolloutCompleted:
    return made.completed(
        sample,
        TOKENS[start:],
        LOG_PROBS[start:],
        attempt=1,
        start=start,
        prompt_length=2,
        stop=StopReason.LENGTH,
        text="text",
        spans=(WeightSpan(0, 2, 4), WeightSpan(2, 4, 6), WeightSpan(4, 6, 9)),
        digest=content_digest(TOKENS, LOG_PROBS),
        engine="engine-1",
        timings=Timings(queued=1.0),
        **more,
    )


async def opened(*events: Event) -> OpenedRun:
    return made.opened(await made.log(*events, run="first"), where="archive/first")


def recall(sample: str = "g-s1") -> ReusedRollout:
    recalled = Recalled(run="first", samples=("g-s0", "g-s1"), common=CommonVersion(7, 5), oldest=3, bound=8)
    group = GroupState(group="again-0", prompt=pack_tokens([1, 2]), source_path="archive/first", recalled=recalled)
    return ReusedRollout(group, SampleState(sample="again-0-s1", attempt=0), recalled, sample)


REQUEST = made.requested("g-s1", prompt=[1, 2], max_new_tokens=6)


async def test_chunks_a_mask_and_a_further_sample() -> None:
    mask = pack(np.array([1, 1, 0, 0, 1, 1], np.int8), "int8")
    chunk = made.progressed(
        "g-s1",
        TOKENS[:4],
        attempt=1,
        log_probs=LOG_PROBS[:4],
        spans=(WeightSpan(0, 2, 4), WeightSpan(2, 4, 6)),
        engine="engine-0",
    )
    further = completed("g-s1-1", 0, rollout="g-s1", loss_mask=mask, prompt=pack_tokens([1, 2, 3]))
    archive = await opened(REQUEST, chunk, further, completed("g-s1", 4))
    first, last = await RecordedRolloutReader("conductor-1", archive).answers([recall()])
    assert isinstance(first, RolloutCompleted)
    assert isinstance(last, RolloutCompleted)
    assert [
        (trajectory.sample, trajectory.group, trajectory.rollout, trajectory.attempt) for trajectory in (first, last)
    ] == [
        ("again-0-s1-1", "again-0", "again-0-s1", 0),
        ("again-0-s1", "again-0", "", 0),
    ]
    for trajectory in (first, last):
        np.testing.assert_array_equal(unpack(trajectory.tokens), TOKENS)
        np.testing.assert_array_equal(unpack(trajectory.log_probs), LOG_PROBS)
        assert (trajectory.start, trajectory.engine, trajectory.timings) == (0, "conductor-1", Timings())
        assert trajectory.spans == (WeightSpan(0, 4, 6), WeightSpan(4, 6, 3)), "v4 and v6 there are both one step off"
    assert (first.loss_mask, first.prompt) == (mask, pack_tokens([1, 2, 3]))
    assert (last.loss_mask, last.prompt) == (None, None)
    assert last.origin is not None
    assert (last.origin.run, last.origin.sample, last.origin.position) == ("first", "g-s1", 4)
    assert last.origin.spans == completed("g-s1", 4).spans


async def test_a_rollout_that_is_not_whole_is_a_failure_with_its_reason() -> None:
    for archive, reason in (
        (await opened(REQUEST), "the log of archive/first holds no completed rollout g-s1"),
        (await opened(REQUEST, completed("g-s1", 4)), "a chunk of 2 tokens and 2 log-probs starts at 4"),
    ):
        (failed,) = await RecordedRolloutReader("conductor-1", archive).answers([recall()])
        assert isinstance(failed, RolloutFailed)
        assert failed.kind is FailureKind.INVALID
        assert reason in failed.message


@pytest.mark.parametrize(("vocabulary", "is_completed"), [(max(TOKENS) + 1, True), (max(TOKENS), False), (None, True)])
async def test_a_rollout_of_a_larger_vocabulary_is_a_failure_with_its_token(
    vocabulary: int | None, is_completed: bool
) -> None:
    archive = await opened(REQUEST, completed("g-s1", 0))
    (event,) = await RecordedRolloutReader("conductor-1", archive, vocabulary).answers([recall()])
    assert isinstance(event, RolloutCompleted) is is_completed
    if isinstance(event, RolloutFailed):
        assert event.kind is FailureKind.INVALID
        assert f"token {max(TOKENS)} is not in the model's vocabulary of {vocabulary}" in event.message

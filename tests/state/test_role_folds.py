"""Test what single roles fold: tokens of rollouts, batches to train, and what was trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from schemas.arrays import EMPTY_TOKENS, pack, pack_log_probs, pack_tokens, unpack
from schemas.batches import BatchSealed
from schemas.errors import StorageError
from schemas.event import Purpose
from schemas.groups import RejectionCause
from schemas.rollouts import (
    RolloutCompleted,
    RolloutProgressed,
    RolloutRequested,
    StopReason,
    WeightSpan,
)
from schemas.runs import Branched
from slime_events.core.tokens.trajectory import (
    Trajectories,
    Trajectory,
    content_digest,
    mask_older_versions,
    merge_spans,
)
from slime_events.loop.conductor.seal import batch_digest
from slime_events.loop.training.pending_batches import PendingBatches
from slime_events.loop.training.training_state import Digests, TrainingState
from tests import made

TOKENS, LOG_PROBS = np.arange(6, dtype=np.int32), np.linspace(-1, 0, 6, dtype=np.float32)
SPANS = (WeightSpan(0, 2, 5), WeightSpan(2, 4, 3), WeightSpan(4, 6, 4))


def requested(sample: str = "g-s0", attempt: int = 0, **more: Any) -> RolloutRequested:
    return made.requested(sample, [7, 8], max_new_tokens=6, attempt=attempt, **more)


def chunk(begin: int, end: int, **more: Any) -> RolloutProgressed:
    spans = (WeightSpan(begin, end, 1),)
    fields = {"tokens": TOKENS[begin:end], "log_probs": LOG_PROBS[begin:end], "start": begin, "spans": spans}
    return made.progressed("g-s0", **fields | more)


def ended(sample: str = "g-s0", begin: int = 0, **more: Any) -> RolloutCompleted:
    fields = {
        "start": begin,
        "prompt_length": 2,
        "stop": StopReason.LENGTH,
        "text": "text",
        "spans": SPANS,
        "digest": content_digest(TOKENS, LOG_PROBS),
        "tokens": TOKENS[begin:],
        "log_probs": LOG_PROBS[begin:],
    }
    return made.completed(sample, **fields | more)


def folded(*events: object) -> dict[str, Trajectory]:
    trajectories = Trajectories(unpack)
    for position, event in enumerate(events, 1):
        trajectories.apply(event, position)
    return trajectories.by_sample


def test_a_trajectory_is_its_chunks_and_its_end() -> None:
    trajectory = folded(requested(), chunk(0, 2), chunk(2, 3), requested(attempt=1))["g-s0"]
    assert (trajectory.length, trajectory.attempt, trajectory.position, trajectory.stop) == (3, 1, 4, None)
    assert trajectory.spans == (WeightSpan(0, 3, 1),)
    rest = made.suspended("g-s0", 3, attempt=1)
    trajectory = folded(requested(), chunk(0, 2), rest, ended(begin=2))["g-s0"]
    np.testing.assert_array_equal(trajectory.tokens, TOKENS)
    np.testing.assert_array_equal(trajectory.log_probs, LOG_PROBS)
    assert (trajectory.oldest, trajectory.newest, trajectory.position) == (3, 5, 4)
    assert (trajectory.stop, trajectory.text, trajectory.spans, trajectory.reused) == (
        StopReason.LENGTH,
        "text",
        SPANS,
        False,
    )
    assert folded(chunk(0, 2), ended("g-s1")) == {}, "names a sample that it has no record of"


def test_an_empty_end_keeps_what_chunks_hold() -> None:
    empty = {"tokens": EMPTY_TOKENS, "log_probs": pack_log_probs([])}
    trajectory = folded(requested(), chunk(0, 6), ended(begin=6, **empty))["g-s0"]
    np.testing.assert_array_equal(trajectory.tokens, TOKENS)
    nothing = folded(requested(), ended(length=0, spans=(), **empty))["g-s0"]
    assert (nothing.length, nothing.oldest, nothing.newest) == (0, 0, 0)


def test_chunks_of_turns_are_not_joined() -> None:
    trajectory = folded(requested(), chunk(0, 2, turn=0), ended())["g-s0"]
    np.testing.assert_array_equal(trajectory.tokens, TOKENS)


@pytest.mark.parametrize(
    "torn",
    [
        chunk(1, 2),
        chunk(0, 2, log_probs=pack_log_probs([0.0])),
        ended(begin=1),
        ended(length=7),
        ended(length=5),
    ],
)
def test_a_torn_history_is_an_error(torn: object) -> None:
    with pytest.raises(StorageError):
        folded(requested(), torn)


def test_a_further_sample_has_the_prompt_that_was_asked_for_or_its_own() -> None:
    mask = pack(np.array([1, 1, 0, 0, 1, 1], np.int8), "int8")
    own = ended("g-s0-2", rollout="g-s0", attempt=3, prompt=pack_tokens([9]), loss_mask=mask)
    samples = folded(requested(), ended("g-s0-1", rollout="g-s0"), own, ended())
    assert list(samples) == ["g-s0", "g-s0-1", "g-s0-2"]
    assert [sample.prompt for sample in samples.values()] == [
        pack_tokens([7, 8]),
        pack_tokens([7, 8]),
        pack_tokens([9]),
    ]
    assert [sample.rollout for sample in samples.values()] == ["", "g-s0", "g-s0"]
    assert (samples["g-s0-2"].attempt, samples["g-s0-2"].position) == (3, 3)
    assert samples["g-s0-2"].loss_mask is not None
    assert samples["g-s0-2"].loss_mask.tolist() == [1, 1, 0, 0, 1, 1]
    assert samples["g-s0"].loss_mask is None


def test_spans_of_one_version_that_meet_are_one() -> None:
    first, empty, apart = WeightSpan(0, 2, 1), WeightSpan(2, 2, 9), WeightSpan(5, 6, 1)
    assert merge_spans((first,), (WeightSpan(2, 3, 1),)) == (WeightSpan(0, 3, 1),)
    assert merge_spans((first,), (WeightSpan(2, 3, 2),)) == (first, WeightSpan(2, 3, 2))
    assert merge_spans((first,), (apart,)) == (first, apart)
    assert merge_spans((first,), (empty,)) == (first,)
    assert merge_spans((), (first,)) == (first,)


def test_tokens_of_older_versions_are_masked() -> None:
    assert mask_older_versions((), 0) is None
    assert mask_older_versions((WeightSpan(0, 3, 2),), 3) is None
    mask = mask_older_versions((WeightSpan(0, 2, 1), WeightSpan(2, 3, 3), WeightSpan(3, 4, 2), WeightSpan(4, 6, 3)), 6)
    assert mask is not None
    assert (mask.tolist(), mask.dtype) == ([0, 0, 1, 0, 1, 1], np.int8)


def sealed(step: int, *samples: str, rewards: tuple[float, ...] = (0.5,), digest: str | None = None) -> BatchSealed:
    lines = [
        (sample, content_digest(TOKENS, LOG_PROBS), reward) for sample, reward in zip(samples, rewards, strict=True)
    ]
    return made.sealed(
        step,
        groups=("g",),
        samples=samples,
        rewards=rewards,
        raw_rewards=tuple(reward + 1 for reward in rewards),
        digest=batch_digest(step, lines) if digest is None else digest,
        oldest_version=3,
    )


def open_batches(*events: Any) -> PendingBatches:
    batches = PendingBatches(unpack, temperature=0.7)
    for position, event in enumerate(events, 1):
        batches.apply(event, position)
    return batches


def test_a_batch_holds_what_was_sealed_in_its_order() -> None:
    mask = pack(np.array([1, 0, 1, 0, 1, 1], np.int8), "int8")
    other = ended("g-s1", stop=StopReason.STOP, loss_mask=mask)
    batches = open_batches(
        requested(), requested("g-s1"), ended(), other, sealed(2, "g-s1", "g-s0", rewards=(-0.5, 0.5))
    )
    batch = batches.make(2)
    first, second = batch.samples
    assert (batch.step, batch.temperature) == (2, 0.7)
    assert [(s.sample, s.group, s.rollout, s.reward, s.raw_reward) for s in batch.samples] == [
        ("g-s1", "g", "g-s1", -0.5, 0.5),
        ("g-s0", "g", "g-s0", 0.5, 1.5),
    ]
    assert (second.oldest_version, second.newest_version, second.response_length, second.total_length) == (3, 5, 6, 8)
    assert (first.truncated, second.truncated, second.reused) == (False, True, False)
    assert (first.loss_mask.tolist(), second.loss_mask.tolist()) == ([1, 0, 1, 0, 1, 1], [1] * 6)
    assert (second.tokens.tolist(), second.tokens.dtype) == ([7, 8, 0, 1, 2, 3, 4, 5], np.int32)
    assert (second.loss_mask.dtype, second.rollout_log_probs.tolist()) == (np.int8, LOG_PROBS.tolist())


@pytest.mark.parametrize(
    "events",
    [
        (requested(), ended(), sealed(0, "g-s0", digest="another")),
        (requested(), ended(digest="another"), sealed(0, "g-s0")),
        (requested(), chunk(0, 6), sealed(0, "g-s0")),
        (ended(), sealed(0, "g-s0")),
    ],
)
def test_a_batch_that_the_log_does_not_hold_is_an_error(events: tuple[Any, ...]) -> None:
    with pytest.raises(StorageError):
        open_batches(*events).make(0)


def test_what_is_trained_rejected_or_of_an_evaluation_is_let_go() -> None:
    batches = open_batches(
        requested(), requested("h-s0"), requested("i-s0", purpose=Purpose.EVAL), ended(), sealed(0, "g-s0")
    )
    is_known = [batches.knows(sample) for sample in ("g-s0", "h-s0", "i-s0")]
    assert is_known == [True, True, False]
    batches.apply(made.rejected("h", RejectionCause.STALE, reason="late", samples=("h-s0",)), 6)
    assert not batches.knows("h-s0")
    batches.forget(1)
    assert (batches.knows("g-s0"), list(batches.sealed)) == (True, [0])
    batches.forget(0)
    assert (batches.knows("g-s0"), list(batches.sealed)) == (False, [])


def test_where_training_stands() -> None:
    trained = TrainingState()
    assert (trained.version, trained.newest_published, trained.is_branch) == (-1, -1, False)
    trained.apply(made.published())
    assert (trained.version, trained.newest_published, trained.is_branch) == (0, 0, False)
    for step in (0, 1):
        trained.apply(made.committed(step))
    assert (trained.version, trained.newest_published, trained.is_branch) == (2, 0, False)
    trained.apply(made.saved(2))
    assert [version for version in trained.saved if trained.matches(trained.saved[version])] == [2]
    assert not trained.matches(made.saved(2, optimizer_digest="another"))
    assert not trained.matches(made.saved(2, weights_digest="another"))
    assert not trained.matches(made.saved(3, weights_digest="d2", optimizer_digest="o2"))


def test_a_branch_begins_with_what_its_parent_committed() -> None:
    trained = TrainingState()
    trained.apply(made.started())
    assert (trained.first, trained.is_branch) == (0, False)
    branched = Branched(
        run="p", where="w", position=9, version=3, weights_digest="w3", optimizer_digest="o3", cursors={}
    )
    trained.apply(made.started(branched=branched))
    assert (trained.first, trained.version, trained.is_branch) == (3, 3, True)
    assert trained.committed == {3: Digests("w3", "o3")}

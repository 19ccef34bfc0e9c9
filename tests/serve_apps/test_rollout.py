"""A rollout in the making: chunks, spans, and what makes a chunk the same chunk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.arrays import unpack
from schemas.envelope import event_id
from schemas.errors import EngineError
from schemas.rollouts import StopReason, WeightSpan
from serve_apps.engines.engine import Delta
from serve_apps.rollouts.rollout import ChunkRule, Rollout
from slime_events.core.tokens.trajectory import Trajectories, Trajectory, content_digest, merge_spans
from slime_events.loop.training.pending_batches import engine_log_probs
from tests import made

REQUEST = made.requested(prompt=[1, 2], max_new_tokens=99)


def rollout() -> Rollout:
    return Rollout(REQUEST, Trajectory("g-s0", REQUEST.prompt, position=3), "e")


def add(rollout_: Rollout, tokens: list[int], version: int) -> None:
    span = WeightSpan(rollout_.length, rollout_.length + len(tokens), version)
    rollout_.add(Delta(np.array(tokens, np.int32), -np.array(tokens, np.float32), (span,)))


def test_rule() -> None:
    rule = ChunkRule(tokens=8, seconds=2.0)
    assert [rule.due(8, 0.0), rule.due(7, 1.9), rule.due(1, 2.0), rule.due(0, 9.0)] == [True, False, True, False]


@given(st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=5), st.integers(0, 2), st.booleans()), max_size=12))
def test_chunks_add_up_to_the_whole(deltas: list[tuple[list[int], int, bool]]) -> None:
    """However deltas come and chunks are cut, the log's fold is what the engine gave."""
    rollout_, folded, whole = rollout(), Trajectories(unpack), []
    folded.apply(REQUEST, 3)
    position = 3
    for tokens, version, cut in deltas:
        add(rollout_, tokens, version)
        whole += tokens
        if cut and rollout_.new_length:
            position += 1
            chunk = rollout_.chunk()
            folded.apply(chunk, position)
            rollout_.appended(chunk, position)
    done = rollout_.end(StopReason.STOP, "text")
    folded.apply(done, position + 1)
    trajectory = folded.by_sample["g-s0"]
    assert trajectory.tokens.tolist() == whole
    assert trajectory.log_probs.tolist() == [-float(token) for token in whole]
    assert done.digest == content_digest(trajectory.tokens, trajectory.log_probs)
    assert done.length == len(whole)
    assert sum(span.end - span.start for span in done.spans) == len(whole)
    assert merge_spans((), done.spans) == done.spans


def test_what_was_left_of_the_vocabulary_is_in_the_chunks() -> None:
    """Keep candidates of the tokens that the engine reported them for, and of no other."""
    rollout_, folded = rollout(), Trajectories(unpack)
    folded.apply(REQUEST, 3)
    for number, (tokens, kept) in enumerate([([5, 9], [[2, 5], [9]]), ([7], None), ([8, 1], [[1, 8, 300], [1]])]):
        begin, (*_, span) = rollout_.length, (WeightSpan(rollout_.length, rollout_.length + len(tokens), 0),)
        kept_fields = {} if kept is None else {
            "kept": np.array([token for place in kept for token in place], np.int32),
            "kept_counts": np.array([len(place) for place in kept], np.int32),
            "kept_log_probs": np.full(len(tokens), -0.25, np.float32),
        }  # fmt: skip
        rollout_.add(Delta(np.array(tokens, np.int32), np.full(len(tokens), -2.0, np.float32), (span,), **kept_fields))
        event = rollout_.chunk() if number < 2 else rollout_.end(StopReason.STOP, "text")
        assert (event.kept is None) is (kept is None)
        folded.apply(event, begin + 4)
        if number < 2:
            rollout_.appended(event, begin + 4)
    trajectory = folded.by_sample["g-s0"]
    places, ids = (
        np.concatenate(parts) for parts in zip(*(tokens_.unpack() for tokens_ in trajectory.kept), strict=True)
    )
    assert list(zip(places.tolist(), ids.tolist(), strict=True)) == [
        (0, 2), (0, 5), (1, 9), (3, 1), (3, 8), (3, 300), (4, 1),
    ]  # fmt: skip
    assert engine_log_probs(trajectory).tolist() == [-0.25, -0.25, -2.0, -0.25, -0.25]
    assert trajectory.log_probs.tolist() == [-2.0] * 5


def test_a_chunk_of_which_a_part_is_known_is_an_error() -> None:
    rollout_ = rollout()
    kept_fields = {"kept": np.array([2, 5], np.int32), "kept_counts": np.array([2], np.int32)}
    span = WeightSpan(0, 2, 0)
    rollout_.add(Delta(np.array([5, 9], np.int32), np.full(2, -2.0, np.float32), (span,), **kept_fields))
    with pytest.raises(EngineError):
        rollout_.chunk()


def test_a_chunk_is_the_same_only_with_the_same_tokens() -> None:
    """Treat continuations by two engines as different, unless they have the very same tokens."""
    ids = []
    for tokens in ([1, 2], [1, 2], [1, 3], [1]):
        rollout_ = rollout()
        add(rollout_, tokens, 0)
        ids.append(event_id("run", rollout_.chunk()))
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3

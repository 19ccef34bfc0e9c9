"""Test `--partial-rollout` on the real engine: what it aborts at a step boundary continues under the next weights."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutRequested, RolloutSuspended
from slime_events.core.tokens.trajectory import Trajectories, content_digest
from tests.run.tiny import GROUPS, events_of, of, run_with, tiny

pytestmark = pytest.mark.real


def test_rollouts_rest_and_go_on(tmp_path: Path) -> None:
    settings = tiny(
        tmp_path,
        "partial",
        rollout={
            "num_rollout": 6,  # every other step draws, and the first may find none under way
            "over_sampling_batch_size": 2 * GROUPS,
            "accept_order": "completion",
            "partial_rollout": True,
            "mask_offpolicy_in_partial_rollout": True,
        },
        engine={"chunk_tokens": 4, "sglang_server_concurrency": 24},
    )
    summary = asyncio.run(run_with(settings))
    assert (summary["phase"], summary["steps"]) == ("finished", 6)
    events = events_of(tmp_path / "runs" / "partial")
    suspended = of(events, RolloutSuspended)
    assert any(event.suspends for event in of(events, BatchSealed))
    assert any(event.length for event in suspended), "some had tokens when they got the order to rest"
    assert summary["counts"]["suspensions"] == len(suspended)
    assert not of(events, RolloutFailed)
    requested = {(event.sample, event.attempt) for event in of(events, RolloutRequested)}
    went_on = {event.sample for event in suspended if (event.sample, event.attempt + 1) in requested}
    assert went_on
    trajectories = Trajectories(unpack)
    for recorded in events:
        trajectories.apply(recorded.envelope.event, recorded.position)  # raises where a token is missing or doubled
    masked = 0
    for done in of(events, RolloutCompleted):
        trajectory = trajectories.by_sample[done.sample]
        assert content_digest(trajectory.tokens, trajectory.log_probs) == done.digest
        versions = [span.version for span in done.spans for _ in range(span.start, span.end)]
        if done.sample in went_on and len(set(versions)) > 1:
            masked += 1
            assert unpack(done.loss_mask).tolist() == [int(version == versions[-1]) for version in versions]
        else:
            assert done.loss_mask is None
    assert masked

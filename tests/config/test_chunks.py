"""The default size of chunks grows with the samples in flight, so that all of them together are a bounded number."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slime_events.core.config.derivations import on_device
from slime_events.core.config.engine import CHUNKS_PER_S, EngineSettings
from slime_events.core.config.settings import TrainSettings


@pytest.mark.parametrize(
    ("samples", "set_", "expected"),
    [
        (128, {}, (512, 5.0)),
        (10_000, {}, (512, 5.0)),
        (20_000, {}, (1_000, 10.0)),
        (100_000, {}, (5_000, 50.0)),
        (100_000, {"chunk_tokens": 64}, (64, 50.0)),
        (100_000, {"chunk_seconds": 7.0}, (5_000, 7.0)),
    ],
)
def test_the_size_of_chunks(samples: int, set_: dict[str, Any], expected: tuple[int, float]) -> None:
    chosen = EngineSettings(device="cuda", **set_).with_chunks_for(samples)
    assert (chosen.chunk_tokens, chosen.chunk_seconds) == (chosen.chunk, chosen.chunk_s) == expected
    assert set_ or samples / chosen.chunk_s <= CHUNKS_PER_S
    assert chosen.with_chunks_for(10 * samples) == chosen


@pytest.mark.parametrize(
    ("gpus", "groups", "expected"),
    [(8, 32, 5.0), (1024, 32, 5.0), (8, 4096, 5.0), (1024, 4096, 49.152), (128, 4096, 32.768)],
)
def test_samples_in_flight_are_those_that_engines_and_the_run_allow(gpus: int, groups: int, expected: float) -> None:
    """4,096 groups of 8 at a staleness of 2 are 98,304 samples, and an engine has at most 512 of them."""
    settings = msgspec.convert(
        {
            "engine": {"rollout_num_gpus": gpus},
            "rollout": {"rollout_batch_size": groups, "n_samples_per_prompt": 8, "max_staleness": 2},
        },
        TrainSettings,
    )
    engine = on_device(settings, "cuda").engine
    assert engine.chunk_seconds == pytest.approx(expected)

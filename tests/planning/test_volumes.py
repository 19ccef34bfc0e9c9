"""The bytes that a plan counts for the log, against encoded events."""

from __future__ import annotations

import time

import numpy as np
import pytest

from schemas.arrays import Array
from schemas.codec import encode
from schemas.envelope import enclose
from schemas.rollouts import RolloutProgressed, WeightSpan
from slime_events.core.planning.assumptions import Assumptions

TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


def chunk(tokens: int) -> bytes:
    random = np.random.default_rng(0)
    event = RolloutProgressed(
        sample="train-0-001234-s7",
        attempt=0,
        start=10_240,
        tokens=Array(dtype="int32", n=tokens, data=random.integers(0, 150_000, tokens).astype("<i4").tobytes()),
        log_probs=Array(dtype="float32", n=tokens, data=random.normal(size=tokens).astype("<f4").tobytes()),
        spans=(WeightSpan(version=12, start=10_240, end=10_240 + tokens),),
        engine="engine-1a2b3c4d",
    )
    return encode(enclose("some-run", event, at=time.time_ns(), producer="engine-1a2b3c4d", traceparent=TRACE))


@pytest.mark.parametrize("tokens", [64, 512])
def test_a_chunk_has_the_counted_bytes(tokens: int) -> None:
    beside = len(chunk(tokens)) - 8 * tokens
    assert 0.5 < beside / Assumptions().chunk_bytes < 1.5

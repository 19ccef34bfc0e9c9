"""Chunks join to the response that they were cut from, however they were cut and whenever somebody looked."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schemas.arrays import pack_log_probs, pack_tokens, unpack
from slime_events.core.tokens.trajectory import Trajectory


@given(lengths=st.lists(st.integers(0, 5), max_size=12), looks=st.sets(st.integers(0, 12)))
def test_chunks_join_to_the_whole(lengths: list[int], looks: set[int]) -> None:
    tokens = np.arange(sum(lengths), dtype=np.int32)
    log_probs = -tokens.astype(np.float32)
    trajectory, begin = Trajectory("s", pack_tokens([1])), 0
    for number, length in enumerate(lengths):
        chunk = slice(begin, begin + length)
        trajectory.join(begin, pack_tokens(tokens[chunk]), pack_log_probs(log_probs[chunk]), unpack)
        begin += length
        assert trajectory.length == begin
        if number in looks:
            assert trajectory.tokens.tolist() == tokens[:begin].tolist()
    assert (trajectory.tokens.dtype, trajectory.log_probs.dtype) == (np.int32, np.float32)
    assert trajectory.tokens.tolist() == tokens.tolist()
    assert trajectory.log_probs.tolist() == log_probs.tolist()

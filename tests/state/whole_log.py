"""`fold`: a whole log to the state at its end, as fast as its place allows."""

from __future__ import annotations

from slime_events.core.state.apply import apply, apply_all
from slime_events.core.state.partial_events import read_short
from slime_events.core.state.run import RunState
from storage.event_block import HasEventBlocks
from storage.log import Readable


async def fold(log: Readable) -> RunState:
    """The state at the end. Raises as `read` of the log does."""
    state = RunState(run=log.run)
    if isinstance(log, HasEventBlocks):
        async for block in log.event_blocks(1, b"", None):
            apply_all(state, read_short(block.arrays, block.first), block.chain.hex())
        return state
    async for recorded in log.read():
        apply(state, recorded)
    return state

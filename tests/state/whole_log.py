"""`fold`: a whole log to the state at its end, block by block where the log has blocks."""

from __future__ import annotations

from slime_events.core.state.apply import apply, apply_all
from slime_events.core.state.partial_events import read_partial_events
from slime_events.core.state.run import RunState
from storage.event_block import HasEventBlocks
from storage.log import Readable


async def fold(log: Readable) -> RunState:
    state = RunState(run=log.run)
    if isinstance(log, HasEventBlocks):
        async for block in log.event_blocks(1, b"", None):
            apply_all(state, read_partial_events(block.parts), block.chain.hex())
        return state
    async for recorded in log.read():
        apply(state, recorded)
    return state

"""`fold`: a whole log to the state at its end, as fast as its place allows."""

from __future__ import annotations

from slime_events.state.apply import apply, apply_all
from slime_events.state.run import RunState
from slime_events.state.short import read_short
from storage.log import Readable
from storage.stretch import Stretched


async def fold(log: Readable) -> RunState:
    """The state at the end. Raises as `read` of the log does."""
    state = RunState(run=log.run)
    if isinstance(log, Stretched):
        async for stretch in log.stretches(1, b"", None):
            apply_all(state, read_short(stretch.arrays, stretch.first), stretch.chain.hex())
        return state
    async for recorded in log.read():
        apply(state, recorded)
    return state

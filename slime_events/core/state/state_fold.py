"""`StateFold`: a state as a process keeps it: folded event by event or in blocks, begun anew or with a snapshot."""

from slime_events.core.state.apply import apply, apply_all
from slime_events.core.state.partial_events import read_partial_events
from slime_events.core.state.run import RunState
from slime_events.core.state.snapshot import Snapshot, encode_snapshot
from storage.event_block import EventBlock
from storage.log import Recorded


class StateFold:
    """before: the chain up to the last event but one (hex), which a snapshot is checked by; known once an event was
    folded in.
    """

    def __init__(self, run: str) -> None:
        self.state = RunState(run=run)
        self.before = ""

    def restore(self, snapshot: Snapshot) -> None:
        """Begin with a snapshot."""
        self.state = snapshot.state

    def apply(self, recorded: Recorded) -> object:
        """Fold one event in."""
        self.before = self.state.chain
        apply(self.state, recorded)
        return None

    def apply_block(self, block: EventBlock) -> None:
        """Fold many events in."""
        apply_all(self.state, read_partial_events(block.parts), block.chain.hex())
        self.before = block.before.hex()

    def snapshot(self) -> bytes:
        """As it is now, encoded; later changes do not matter."""
        return encode_snapshot(self.state, self.before)

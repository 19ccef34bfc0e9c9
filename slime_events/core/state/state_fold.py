"""`StateFold`: a state that a process keeps, folded by event or by block, from the start or from a snapshot."""

from slime_events.core.state.apply import apply, apply_all
from slime_events.core.state.partial_events import read_partial_events
from slime_events.core.state.run import RunState
from slime_events.core.state.snapshot import Snapshot, encode_snapshot
from storage.event_block import EventBlock
from storage.log import Recorded


class StateFold:
    """Folds a run's log into its state.

    before: the chain up to the last but one event, hex, which verifies a snapshot. It is known after the first event.
    """

    def __init__(self, run: str) -> None:
        self.state = RunState(run=run)
        self.before = ""

    def restore(self, snapshot: Snapshot) -> None:
        """Start from a snapshot."""
        self.state = snapshot.state

    def apply(self, recorded: Recorded) -> object:
        """Fold an event in."""
        self.before = self.state.chain
        apply(self.state, recorded)
        return None

    def apply_block(self, block: EventBlock) -> None:
        """Fold a block of events in."""
        apply_all(self.state, read_partial_events(block.parts), block.chain.hex())
        self.before = block.before.hex()

    def snapshot(self) -> bytes:
        """Return the encoded state; later changes do not affect it."""
        return encode_snapshot(self.state, self.before)

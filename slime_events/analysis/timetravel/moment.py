"""`Moment`: a run at one position of its log. Two folds in one pass: the state, and what is around it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from slime_events.analysis.timetravel.context import Around
from slime_events.core.state.apply import apply, apply_all
from slime_events.core.state.partial_events import FoldedEvent, read_partial_events
from slime_events.core.state.run import RunState
from storage.event_block import Stretch
from storage.log import Recorded


@dataclass(slots=True)
class Moment:
    """state: the fold of everything up to `position`. before: the chain up to the event before the last (hex), with
    which a snapshot can be checked. last: the event at `position`.
    """

    state: RunState
    around: Around = field(default_factory=Around)
    before: str = ""
    last: Recorded | None = None

    @property
    def position(self) -> int:
        """Of the last event folded in."""
        return self.state.events

    def apply(self, recorded: Recorded) -> None:
        """Fold one event in."""
        self.before = self.state.chain
        apply(self.state, recorded)
        self.around.apply(recorded.position, recorded.envelope)
        self.last = recorded

    def apply_all(self, stretch: Stretch) -> Sequence[FoldedEvent]:
        """Fold many events in, and give them back. `last` is not known afterwards."""
        events = list(itertools.chain.from_iterable(read_partial_events(stretch.arrays, stretch.first, decisions=True)))
        apply_all(self.state, [events], stretch.chain.hex())
        self.around.apply_all(stretch.first, events)
        self.before, self.last = stretch.before.hex(), None
        return events

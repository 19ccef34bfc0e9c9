"""`RefusalWatch`: report the prompts that a run has refused, counted by reason."""

from collections.abc import Iterable

from schemas.event import Event
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.subjects import of_type
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.state.run import RunState
from slime_events.loop.prompts.refusals import ReasonCounts
from storage.log import Readable


class RefusedPrompts:
    """A fold of prompt.rejected. A row that is refused again in each epoch counts as one row and as several draws."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._rows: set[tuple[str, str, int, str]] = set()
        self._reasons = ReasonCounts()
        self.draws = 0
        for event in events:
            self.apply(event)

    def __len__(self) -> int:
        """Return the number of refused rows, lines and prompts from outside."""
        return len(self._rows)

    def apply(self, event: Event) -> bool:
        """Fold one event in, and return whether it is a refusal."""
        if not isinstance(event, PromptRejected):
            return False
        self.draws += 1
        row = event.dataset, event.source.path, event.source.line, event.group
        if row not in self._rows:
            self._rows.add(row)
            self._reasons.add(event.reason.partition(": ")[2])
        return True

    def text(self, submitted: int, folder: RunFolder) -> str:
        """Return a sentence about the refusals. submitted: number of accepted training prompts."""
        rows = "" if self.draws == len(self) else f", from {len(self)} rows"
        where = f"list them with `slime-events tail {folder.named} --type prompt.rejected --no-follow`"
        return f"{self.draws} of {self.draws + submitted} prompts refused{rows}: {self._reasons} ({where})"


class RefusalWatch:
    """Reports refused prompts after the first draw that has any, and then whenever their number has grown tenfold.

    before: the run's state until now, whose refused prompts have been reported.
    """

    def __init__(self, folder: RunFolder, before: RunState) -> None:
        self._folder, self._refused = folder, RefusedPrompts()
        self._submitted, self._next = before.counts.prompts_submitted, 1

    def apply(self, event: Event) -> str | None:
        """Fold one event in, and return a sentence if it is news. Waits for the rest of the draw."""
        if self._refused.apply(event):
            return None
        if isinstance(event, PromptSubmitted):
            self._submitted += 1
            return None
        if len(self._refused) < self._next:
            return None
        while len(self._refused) >= self._next:
            self._next *= 10
        return self._refused.text(self._submitted, self._folder)


async def refused_prompts(log: Readable, state: RunState, folder: RunFolder) -> str | None:
    """Return a sentence about a whole run, or None if it has refused no prompts. Raises StorageError."""
    if not state.counts.prompts_rejected:
        return None
    events = [recorded.envelope.event async for recorded in log.read(1, of_type(log.run, "prompt.rejected"))]
    return RefusedPrompts(events).text(state.counts.prompts_submitted, folder)

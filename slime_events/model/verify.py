"""`verify`: does the log of a finished run fold to exactly the state that the live run ended with?

`run.finished` holds the digest and the number of events of the live conductor's state. A fold of the log from the first
position must give both. The state's digest chains over the bytes of every event, so a missing, added or changed event
changes it.
"""

from typing import Annotated, NamedTuple

from schemas.doc import doc
from schemas.errors import LogDamaged
from schemas.runs import RunFinished
from slime_events.core.state.apply import apply
from slime_events.core.state.run import FOLD, RunState, digest_by
from slime_events.plugins.texts import Texts
from storage.log import ForeignRecord, Readable, Recorded


class Verified(NamedTuple):
    """Result of `verify`."""

    run: Annotated[str, doc("name of the run")]
    events: Annotated[int, doc("events in the state that the last run.finished names")]
    digest: Annotated[str, doc("digest of that state")]
    position: Annotated[int, doc("position of the last event in the log")]
    steps: Annotated[int, doc("number of committed steps")]

    def __str__(self) -> str:
        return f"{self.run}: {self.events} events fold to state {self.digest}, as the live run ended"


async def verify(log: Readable) -> Verified:
    """Fold the log from its first position and compare at every `run.finished`: a resumed run has several, the last
    counts.

    Raises LogDamaged if a position is missing, an event does not fold, the count or the digest differs, or the log has
    no run.finished to compare with.
    """
    state, texts, finished, before = RunState(run=log.run), Texts(of_all=True), None, 0
    async for recorded in log.read_records():
        if recorded.position != before + 1:
            raise LogDamaged(
                f"run {log.run}: position {before + 1} is missing, {recorded.position} comes after {before}"
            )
        before = recorded.position
        if isinstance(recorded, ForeignRecord):
            continue
        if isinstance(recorded.envelope.event, RunFinished):
            finished = _compare(state, texts, recorded.envelope.event, recorded.position)
        fold(state, recorded)
        texts.apply(recorded.envelope.event, state)
    if finished is None:
        why = f"the run failed: {state.failure}" if state.failure else f"its {state.events} events end without one"
        raise LogDamaged(f"run {log.run} has no run.finished to compare with: {why}")
    return Verified(log.run, finished.events, finished.state_digest, state.events, finished.steps)


def fold(state: RunState, recorded: Recorded) -> None:
    """Apply an event. Raises LogDamaged if it does not fit the events before it."""
    try:
        apply(state, recorded)
    except (KeyError, ValueError, IndexError) as error:
        raise LogDamaged(
            f"run {state.run}: {recorded.envelope.type} at position {recorded.position} does not fit the events before "
            f"it ({type(error).__name__}: {error}): one of them is missing or was changed"
        ) from error


def _compare(state: RunState, texts: Texts, finished: RunFinished, position: int) -> RunFinished:
    if finished.events != state.events:
        missing = finished.events - state.events
        what = f"{missing} are missing" if missing > 0 else f"{-missing} were added"
        raise LogDamaged(
            f"run {state.run}: run.finished at position {position} was recorded after {finished.events} events, and "
            f"{state.events} are before it: {what}"
        )
    digest = digest_by(finished.fold, state, texts.with_texts)
    if digest is None:
        raise LogDamaged(
            f"run {state.run} was folded by rules {finished.fold}, and this version folds by rules {FOLD}: all "
            f"{state.events} events are present and fit, but the digest cannot be compared"
        )
    if digest != finished.state_digest:
        raise LogDamaged(
            f"run {state.run}: {state.events} events fold to state {digest}, and the live run ended with "
            f"{finished.state_digest}: an event was changed or replaced"
        )
    return finished

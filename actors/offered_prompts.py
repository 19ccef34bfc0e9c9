"""`OfferedPrompts`: submits prompts that producers offered while no conductor was running."""

from itertools import islice

from schemas.event import Event
from schemas.ids import INBOX
from schemas.prompts import PromptOffered, PromptRejected, Source
from schemas.subjects import of_type
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.outside_prompts import OutsidePrompts
from slime_events.loop.prompts.inbox_message import WrongField
from slime_events.loop.prompts.producer_keys import as_given
from storage.log import EventLog

AT_ONCE = 500
"""Offers per cycle; the limit keeps engines from waiting for all of them."""


class OfferedPrompts:
    """Answers open offers, which the state lists, with their content from the log."""

    def __init__(self, log: EventLog, prompts: OutsidePrompts) -> None:
        self._log, self._prompts = log, prompts
        self._answered: set[str] = set()

    async def answers(self, state: RunState) -> list[Event]:
        """Return for each offer its prompt, or a rejection with the reason. Raises StorageError."""
        due = list(islice((group for group in state.offers if group not in self._answered), AT_ONCE))
        if not due:
            return []
        last = await self._log.last_of_each([of_type(state.run, "prompt.offered", group) for group in due])
        self._answered.update(due)
        offers = (recorded.envelope.event for recorded in last.values())
        return [self._answer(offer) for offer in offers if isinstance(offer, PromptOffered)]

    def _answer(self, offer: PromptOffered) -> Event:
        try:
            return self._prompts.submitted(as_given(offer), offer.sender)
        except WrongField as error:
            source = Source(path=INBOX, key=offer.key, sender=offer.sender, offset=-1)
            return PromptRejected(source=source, reason=error.message, dataset=INBOX, group=offer.group)

"""How one call of `append` becomes messages: pure, no network.

Every message is fenced. An event without a fence of its own is fenced on the last position of its subject that this
writer knows. So its id is looked up before it could be stored a second time, however long ago the first time was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.subjects import every_event
from storage.log import Append, Fence, check_batch, check_size

ID = "Nats-Msg-Id"
PAST_ID = "Slime-Id"
"""The same, of an event that has left its stream: the server need not look for it among those that come."""
LAST = "Nats-Expected-Last-Sequence"
LAST_ON_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
LAST_ON_FILTER = "Nats-Expected-Last-Subject-Sequence-Subject"
BATCH_ID = "Nats-Batch-Id"
BATCH_SEQUENCE = "Nats-Batch-Sequence"
BATCH_COMMIT = "Nats-Batch-Commit"


@dataclass(frozen=True, slots=True)
class Message:
    """One event, encoded. fence: the caller's, or None."""

    id: str
    subject: str
    data: bytes
    fence: Fence | None
    event_type: str

    @property
    def key(self) -> tuple[str, str]:
        """What makes it the same event."""
        return (self.subject, self.id)


def messages_of(appends: Sequence[Append], limit: int) -> list[Message]:
    """Encoded, each event once. Raises EventTooLarge."""
    messages: dict[tuple[str, str], Message] = {}
    for append in appends:
        envelope = append.envelope
        message = Message(envelope.id, envelope.subject, append.encoded(), append.fence, envelope.type)
        check_size(append, len(message.data), limit)
        messages.setdefault(message.key, message)
    check_batch(len(messages), sum(len(m.data) for m in messages.values()))
    return list(messages.values())


class Contradiction(Exception):
    """Two fences of one call name different positions for one filter: one of them has lost already."""


def fences_of(run: str, messages: Sequence[Message], known: Mapping[str, int]) -> tuple[int | None, dict[str, int]]:
    """The position of the whole log that is expected, and that of each filter. `known`: last positions by subject."""
    whole: int | None = None
    wanted: dict[str, int] = {}
    for fence in (m.fence for m in messages if m.fence is not None):
        if fence.subject == every_event(run):
            if whole not in (None, fence.position):
                raise Contradiction
            whole = fence.position
        elif wanted.setdefault(fence.subject, fence.position) != fence.position:
            raise Contradiction
    for message in messages:
        if message.fence is None and message.subject not in wanted:
            wanted[message.subject] = known.get(message.subject, 0)
    return whole, wanted


def headers_of(
    messages: Sequence[Message], whole: int | None, wanted: Mapping[str, int], batch_id: str
) -> list[dict[str, str]]:
    """The headers of each message.

    The server judges a batch message by message, and refuses a fence on a subject that an earlier message of the same
    batch writes to. So a fence on a subject goes to the first message there, and any other to a message that is free.
    """
    headers = [{ID: message.id} for message in messages]
    first: dict[str, int] = {}
    for i, message in enumerate(messages):
        first.setdefault(message.subject, i)
    for subject, position in wanted.items():
        if subject in first:
            headers[first[subject]][LAST_ON_SUBJECT] = str(position)
    free = (h for h in headers if LAST_ON_SUBJECT not in h)
    for subject, position in wanted.items():
        if subject not in first:
            next(free).update({LAST_ON_SUBJECT: str(position), LAST_ON_FILTER: subject})
    if whole is not None:
        headers[0][LAST] = str(whole)
    batch_headers(headers, batch_id)
    return headers


def batch_headers(headers: Sequence[dict[str, str]], batch_id: str) -> None:
    """Make one atomic batch of messages, by their headers; one message is stored by itself."""
    if len(headers) > 1:
        for i, header in enumerate(headers, 1):
            header.update({BATCH_ID: batch_id, BATCH_SEQUENCE: str(i)})
        headers[-1][BATCH_COMMIT] = "1"

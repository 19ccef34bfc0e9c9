"""How one call of `append` becomes messages: pure, no network.

Every message is fenced. An event without a fence of its own is fenced on the last position of its subject that this
writer knows. So its id is looked up before it could be stored a second time, however long ago the first time was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from schemas.subjects import every_event
from storage.jetstream.answer import ID
from storage.log import Append, Fence, check_batch, check_size

LAST = "Nats-Expected-Last-Sequence"
LAST_ON_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
LAST_ON_FILTER = "Nats-Expected-Last-Subject-Sequence-Subject"
BATCH_ID = "Nats-Batch-Id"
BATCH_SEQUENCE = "Nats-Batch-Sequence"
BATCH_COMMIT = "Nats-Batch-Commit"


@dataclass(frozen=True, slots=True)
class Message:
    """One event, encoded. fence: the caller's, or None. message_id: its id, or `renamed`."""

    id: str
    subject: str
    data: bytes
    fence: Fence | None
    event_type: str
    message_id: str

    def renamed(self, suffix: str) -> "Message":
        """With another message id that `judge` takes for this event's: a foreign record has its own."""
        return replace(self, message_id=f"{self.id}-{suffix}")

    @property
    def key(self) -> tuple[str, str]:
        """What makes it the same event."""
        return (self.subject, self.id)


def messages_of(appends: Sequence[Append], limit: int) -> list[Message]:
    """Encoded, each event once. Raises EventTooLarge."""
    messages: dict[tuple[str, str], Message] = {}
    for append in appends:
        envelope = append.envelope
        id_, fence = envelope.id, append.fence
        message = Message(id_, envelope.subject, append.encoded(), fence, envelope.type, id_)
        check_size(append, len(message.data), limit)
        messages.setdefault(message.key, message)
    check_batch(len(messages), sum(len(m.data) for m in messages.values()))
    return list(messages.values())


class Contradiction(Exception):
    """Two fences of one call name different positions for one filter: one of them has lost already."""


def fences_of(
    run: str, messages: Sequence[Message], known: Mapping[str, int], passed: Mapping[Fence, int]
) -> tuple[int | None, dict[str, int]]:
    """The position of the whole log that is expected, and that of each filter. known: last positions by subject.
    passed: of fences behind which there are foreign records alone, the position of the last of these.
    """
    whole: int | None = None
    wanted: dict[str, int] = {}
    for said in (m.fence for m in messages if m.fence is not None):
        fence = Fence(said.subject, passed.get(said, said.position))
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
    headers = [{ID: message.message_id} for message in messages]
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
    return in_one_batch(headers, batch_id)


def in_one_batch(headers: list[dict[str, str]], batch_id: str) -> list[dict[str, str]]:
    """The headers of messages that the server stores together or not at all."""
    if len(headers) > 1:
        for i, header in enumerate(headers, 1):
            header.update({BATCH_ID: batch_id, BATCH_SEQUENCE: str(i)})
        headers[-1][BATCH_COMMIT] = "1"
    return headers

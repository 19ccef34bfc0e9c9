"""Convert one call of `append` to messages, without network access.

Every message has a fence. An event without a fence gets one on the last position of its subject that this writer knows.
So a repeated event is refused and looked up by its id, however long ago it was stored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from schemas.doc import doc
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
    """One encoded event."""

    id: Annotated[str, doc("Id of the event.")]
    subject: str
    data: bytes
    fence: Annotated[Fence | None, doc("The caller's fence.")]
    event_type: str
    message_id: Annotated[str, doc("The event's id, or the id of `renamed`.")]

    def renamed(self, suffix: str) -> "Message":
        """Return a copy with another message id that `judge` accepts, for an id that a foreign record has taken."""
        return replace(self, message_id=f"{self.id}-{suffix}")

    @property
    def key(self) -> tuple[str, str]:
        """Subject and id: equal for the same event."""
        return (self.subject, self.id)


def messages_of(appends: Sequence[Append], limit: int) -> list[Message]:
    """Return the encoded events, each once. limit: bytes of one event. Raises EventTooLarge."""
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
    """Two fences of one call have different positions for one filter, so one of them must fail."""


def fences_of(
    run: str, messages: Sequence[Message], last: Mapping[str, int], passed: Mapping[Fence, int]
) -> tuple[int | None, dict[str, int]]:
    """Return the expected last position of the whole log (None: any), and of each filter.

    last: known last positions by subject. passed: for a fence that only foreign records follow, the position of the
    last of these.
    """
    whole: int | None = None
    expected: dict[str, int] = {}
    for own in (m.fence for m in messages if m.fence is not None):
        fence = Fence(own.subject, passed.get(own, own.position))
        if fence.subject == every_event(run):
            if whole not in (None, fence.position):
                raise Contradiction
            whole = fence.position
        elif expected.setdefault(fence.subject, fence.position) != fence.position:
            raise Contradiction
    for message in messages:
        if message.fence is None and message.subject not in expected:
            expected[message.subject] = last.get(message.subject, 0)
    return whole, expected


def headers_of(
    messages: Sequence[Message], whole: int | None, expected: Mapping[str, int], batch_id: str
) -> list[dict[str, str]]:
    """Return the headers of each message.

    The server judges a batch message by message, and refuses a fence on a subject that an earlier message of the same
    batch writes. So the first message on a subject carries the fence on it, and messages without a fence carry the
    others.
    """
    headers = [{ID: message.message_id} for message in messages]
    first: dict[str, int] = {}
    for i, message in enumerate(messages):
        first.setdefault(message.subject, i)
    for subject, position in expected.items():
        if subject in first:
            headers[first[subject]][LAST_ON_SUBJECT] = str(position)
    free = (h for h in headers if LAST_ON_SUBJECT not in h)
    for subject, position in expected.items():
        if subject not in first:
            next(free).update({LAST_ON_SUBJECT: str(position), LAST_ON_FILTER: subject})
    if whole is not None:
        headers[0][LAST] = str(whole)
    return in_one_batch(headers, batch_id)


def in_one_batch(headers: list[dict[str, str]], batch_id: str) -> list[dict[str, str]]:
    """Return the headers of messages that the server stores together or not at all."""
    if len(headers) > 1:
        for i, header in enumerate(headers, 1):
            header.update({BATCH_ID: batch_id, BATCH_SEQUENCE: str(i)})
        headers[-1][BATCH_COMMIT] = "1"
    return headers

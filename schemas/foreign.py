"""`judge`: what on a run's stream is an event of the run, and what is foreign. The same for every log and archive.

A record is an event where its bytes decode to one, it is of this run, it lies on the event's own subject, its id is
the one derived from the event, and it was appended with that id and a fence, as its message id says. Everything else is
foreign: whoever may publish to the stream can leave it there, nobody can remove it, and it is folded as nothing.

An event that only a newer version can read is not foreign: it would be lost in silence. What such a version writes is
known by run, subject, form of the id and message id. Where all of them fit, `judge` raises as `decode` does.
"""

import enum
import re
from collections.abc import Sequence

from schemas.codec import StoredEnvelope, WholeEnvelope, decode, decode_each, read_apart
from schemas.envelope import Envelope, derivations
from schemas.errors import SchemaError, UnknownEventType, UnknownSchemaVersion
from schemas.event import Event
from schemas.subjects import is_token

_ID = re.compile(r"[0-9a-f]{32}")


class Reason(enum.StrEnum):
    """Why a record is foreign: the first of these that is so."""

    NO_EVENT = "it is no event"
    OTHER_RUN = "it is an event of another run"
    SUBJECT = "it is an event on a subject that is not its own"
    ID = "it is an event with an id that is not its own"
    MESSAGE_ID = "it is an event that was not appended with its id and a fence: a copy"


def judge(run: str, subject: str, message_id: str | None, data: bytes) -> Envelope | Reason:
    """The event that a record holds, or why it is foreign. message_id: empty where it has none, None where a copy of
    the log does not say. Raises UnknownEventType, UnknownSchemaVersion for an event of a newer version.
    """
    try:
        envelope = decode(data)
    except (UnknownEventType, UnknownSchemaVersion):
        if _is_newer(run, subject, message_id, *read_apart(data)):
            raise
        return Reason.NO_EVENT
    except SchemaError:
        return Reason.NO_EVENT
    event = envelope.event
    derivation = derivations(run)[type(event)]
    entity, identity = derivation.about(event)
    if envelope.run != run:
        return Reason.OTHER_RUN
    if subject != derivation.prefix + entity or not is_token(entity):
        return Reason.SUBJECT
    if envelope.id != derivation.id_of(identity):
        return Reason.ID
    if message_id != envelope.id and not is_message_id(message_id, envelope.id):
        return Reason.MESSAGE_ID
    return envelope


def all_events(
    run: str, subjects: Sequence[str], message_ids: Sequence[str], datas: Sequence[bytes]
) -> Sequence[WholeEnvelope] | None:
    """The events in some records, where all of them are events, and of today's schema: what `judge` says of each, in
    half of its time. Else None: judge them one by one.
    """
    found = decode_each(datas)
    if found is None:
        return None
    known, entities = derivations(run), list[str]()
    last: type[Event] | None = None
    for whole, subject, message_id in zip(found, subjects, message_ids, strict=True):
        event: Event = whole.event
        kind = type(event)
        if kind is not last:  # most events come in rows of one type
            last, (prefix, fresh, about, schema, entity_of, second_of, end) = kind, known[kind]
        if entity_of is None:
            entity, identity = about(event)
        else:
            entity = str(entity_of(event))
            identity = entity + end if second_of is None else f"{entity}\x1f{second_of(event)}{end}"
        hashed = fresh()
        hashed.update(identity.encode())
        if message_id != hashed.hexdigest() or message_id != whole.id or whole.schema != schema or whole.run != run:
            return None
        if subject != prefix + entity or not entity:
            return None
        entities.append(entity)
    return found if is_token("".join(entities)) else None


def is_message_id(message_id: str | None, event: str) -> bool:
    """Whether a record with this message id may be the event with this id. It is the id, with `-` and more after it
    where a foreign record had taken the id itself.
    """
    return message_id is None or message_id == event or message_id.startswith(f"{event}-")


def _is_newer(run: str, subject: str, message_id: str | None, head: StoredEnvelope, event_type: str) -> bool:
    """Whether a record that this version cannot read is of a newer version's writer, as far as that can be known."""
    own = head.run == run and bool(_ID.fullmatch(head.id)) and is_message_id(message_id, head.id)
    tokens = subject.split(".")
    return own and len(tokens) == 5 and tokens[:4] == ["slime", run, *event_type.split(".")] and is_token(tokens[4])

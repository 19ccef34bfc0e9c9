"""`judge`: whether a record on a run's stream is an event of the run or foreign. Every log and archive uses it.

A record is an event if its bytes decode to one, it belongs to this run, its subject and id are derived from the event,
and its message id shows that it was appended with that id and a fence. Every other record is foreign: anyone with
permission to publish to the stream can add it, nobody can remove it, and the fold ignores it.

An event that only a newer version can read is not foreign, because ignoring it would lose it silently. Its run,
subject, form of the id and message id identify it. If all of them fit, `judge` raises as `decode` does.
"""

import enum
import re
from collections.abc import Sequence

from schemas.codec import StoredEnvelope, WholeEnvelope, decode, decode_each, decode_older, read_apart
from schemas.envelope import Envelope, derivations
from schemas.errors import SchemaError, UnknownEventType, UnknownSchemaVersion
from schemas.event import Event
from schemas.subjects import is_token

_ID = re.compile(r"[0-9a-f]{32}")


class Reason(enum.StrEnum):
    """Why a record is foreign: the first reason that applies."""

    NO_EVENT = "it is not an event"
    OTHER_RUN = "it is an event of another run"
    SUBJECT = "it is an event on a subject that is not its own"
    ID = "it is an event with an id that is not its own"
    MESSAGE_ID = "it is an event that was not appended with its id and a fence: a copy"


def judge(run: str, subject: str, message_id: str | None, data: bytes) -> Envelope | Reason:
    """Return the event in a record, or why the record is foreign.

    message_id: empty if the record has none, None if a copy of the log does not have message ids.
    Raises UnknownEventType or UnknownSchemaVersion for an event of a newer version.
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
    """Return the events in some records if all are events, in half the time of `judge`.

    Otherwise return None: call `judge` for each record.
    """
    decoded = decode_each(datas)
    if decoded is None:
        return None
    by_type, entities = derivations(run), list[str]()
    last: type[Event] | None = None
    for whole, subject, message_id in zip(decoded, subjects, message_ids, strict=True):
        event: Event = whole.event
        kind = type(event)
        if kind is not last:  # consecutive events mostly have one type
            last, (prefix, fresh, about, schema, entity_of, second_of, end) = kind, by_type[kind]
        if whole.schema != schema:
            at = len(entities)
            older = decode_older(whole, datas[at])
            if older is None:
                return None
            decoded[at], event = older, older.event
        if entity_of is None:
            entity, identity = about(event)
        else:
            entity = str(entity_of(event))
            identity = entity + end if second_of is None else f"{entity}\x1f{second_of(event)}{end}"
        hashed = fresh()
        hashed.update(identity.encode())
        if message_id != hashed.hexdigest() or message_id != whole.id or whole.run != run:
            return None
        if subject != prefix + entity or not entity:
            return None
        entities.append(entity)
    return decoded if is_token("".join(entities)) else None


def is_message_id(message_id: str | None, event: str) -> bool:
    """Return whether a record with this message id may be the event with this id.

    The message id is the event's id. If a foreign record had taken that id before, `-` and a suffix follow it.
    """
    return message_id is None or message_id == event or message_id.startswith(f"{event}-")


def _is_newer(run: str, subject: str, message_id: str | None, head: StoredEnvelope, event_type: str) -> bool:
    """Return whether a record that this version cannot read has all marks of a newer version's writer."""
    own = head.run == run and bool(_ID.fullmatch(head.id)) and is_message_id(message_id, head.id)
    tokens = subject.split(".")
    return own and len(tokens) == 5 and tokens[:4] == ["slime", run, *event_type.split(".")] and is_token(tokens[4])

"""Envelopes to bytes and back: MessagePack maps, the event inside the envelope.

Reading is strict where it must be and lenient where it may: an unknown field is ignored (a newer writer), an unknown
type is `UnknownEventType`, a newer schema `UnknownSchemaVersion`, anything else that is not an event `DamagedEvent`.
No input makes the reader raise anything outside `SchemaError`, and what cannot be written is `UnwritableEvent`. So is a
value of another type than its field's, which MessagePack would take, and no reader.
"""

from collections.abc import Iterable, Sequence
from typing import Union

import msgspec

from schemas.envelope import Envelope
from schemas.errors import DamagedEvent, UnknownEventType, UnknownSchemaVersion, UnwritableEvent
from schemas.event import Event, type_of
from schemas.readable import check_readable
from schemas.registry import BY_TYPE, EVENT_CLASSES
from schemas.text import message_text
from schemas.upcast import upcast


class StoredEnvelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The map that is stored: an envelope around an encoded event, and the schema version of that."""

    id: str
    run: str
    schema: int
    at: int
    producer: str
    event: msgspec.Raw
    cause: str | None = None
    traceparent: str | None = None


class _Tag(msgspec.Struct, frozen=True):
    type: str


class WholeEnvelope(StoredEnvelope, frozen=True, kw_only=True, gc=False):
    """`StoredEnvelope` with the event read in the same pass: twice as fast, where it is of this version's schema."""

    event: Union[EVENT_CLASSES]  # type: ignore[valid-type]  # noqa: UP007


_encoder = msgspec.msgpack.Encoder()
_wire = msgspec.msgpack.Decoder(StoredEnvelope)
_whole = msgspec.msgpack.Decoder(WholeEnvelope)
_tag = msgspec.msgpack.Decoder(_Tag)
_events: dict[str, msgspec.msgpack.Decoder[Event]] = {tag: msgspec.msgpack.Decoder(cls) for tag, cls in BY_TYPE.items()}


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_BAD_PLAIN = (*_UNREADABLE, LookupError, TypeError, ValueError, AttributeError)
"""What an upcaster may raise over a dict that is not what it should be."""


def encode(envelope: Envelope) -> bytes:
    """The record that is stored. Raises UnwritableEvent, as for a grader's detail that holds an object of its own."""
    event = encode_event(envelope.event)
    try:
        return _encoder.encode(
            StoredEnvelope(
                id=envelope.id,
                run=envelope.run,
                schema=envelope.event.SCHEMA,
                at=envelope.at,
                producer=envelope.producer,
                event=msgspec.Raw(event),
                cause=envelope.cause,
                traceparent=envelope.traceparent,
            )
        )
    except _UNWRITABLE as error:
        raise _unwritable(envelope.event, error) from error


def encode_event(event: Event) -> bytes:
    """An event without its envelope. Raises UnwritableEvent as `encode` does."""
    try:
        encoded = _encoder.encode(event)
        check_readable(event, encoded)
    except _UNWRITABLE as error:
        raise _unwritable(event, error) from error
    return encoded


def _unwritable(event: Event, error: Exception) -> UnwritableEvent:
    try:
        about = event.entity()
    except (AttributeError, LookupError, TypeError, ValueError):  # the wrong value is what names it
        about = "nothing that can be named"
    return UnwritableEvent(f"{type_of(event)} about {about} holds what cannot be written: {message_text(error)}")


def decode(data: bytes) -> Envelope:
    """The envelope that was stored. Raises only from the `SchemaError` branch."""
    try:
        whole = _whole.decode(data)
    except _UNREADABLE:
        return _decode_apart(data)
    event: Event = whole.event
    if whole.schema != event.SCHEMA:
        return _decode_apart(data)
    return enclosed(whole, event)


def decode_whole(data: bytes) -> WholeEnvelope | Envelope:
    """`decode` for readers of a whole log: what is of today's schema comes without an `Envelope` made around it."""
    try:
        whole = _whole.decode(data)
    except _UNREADABLE:
        return _decode_apart(data)
    event: Event = whole.event
    return whole if whole.schema == event.SCHEMA else _decode_apart(data)


def decode_each(datas: Iterable[bytes]) -> Sequence[WholeEnvelope] | None:
    """What was stored, without an `Envelope` around it; None where any is no event of today's schema."""
    read = _whole.decode
    try:
        return [read(data) for data in datas]
    except _UNREADABLE:
        return None


def enclosed(head: StoredEnvelope | Envelope, event: Event) -> Envelope:
    """The stored envelope as it was written, around its event."""
    return Envelope(
        id=head.id,
        run=head.run,
        at=head.at,
        producer=head.producer,
        event=event,
        cause=head.cause,
        traceparent=head.traceparent,
    )


def _decode_apart(data: bytes) -> Envelope:
    """The envelope first, then the event by its type and schema: for an older schema, or to name what is wrong."""
    wire, event_type = read_apart(data)
    return enclosed(wire, _decode_event(event_type, wire))


def read_apart(data: bytes) -> tuple[StoredEnvelope, str]:
    """The envelope with its event still encoded, and the event's type, known or not. Raises DamagedEvent."""
    try:
        wire = _wire.decode(data)
        return wire, _tag.decode(wire.event).type
    except _UNREADABLE as error:
        raise DamagedEvent(f"not an event ({len(data)} bytes): {error}") from error


def _decode_event(event_type: str, wire: StoredEnvelope) -> Event:
    cls = BY_TYPE.get(event_type)
    if cls is None:
        raise UnknownEventType(f"event {wire.id} has type {event_type!r}, which this version does not know: upgrade")
    if wire.schema > cls.SCHEMA:
        raise UnknownSchemaVersion(
            f"event {wire.id} is {event_type} in schema {wire.schema}, this version knows up to {cls.SCHEMA}: upgrade"
        )
    try:
        if wire.schema == cls.SCHEMA:
            return _events[event_type].decode(wire.event)
        plain = msgspec.msgpack.decode(wire.event, type=dict)
        return msgspec.convert(upcast(event_type, wire.schema, cls.SCHEMA, plain), cls)
    except _BAD_PLAIN as error:
        raise DamagedEvent(f"event {wire.id} of type {event_type} is damaged: {error!r}") from error

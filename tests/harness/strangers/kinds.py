"""Kinds of records on a run's stream that are not events of the run, by name.

Each is made from an event of the run, so that it is as close to an event as its kind allows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from schemas.codec import encode
from schemas.envelope import Envelope, event_id
from schemas.foreign import Reason
from storage.jetstream.answer import message_id
from storage.log import HEADER_BYTES, MAX_EVENT_BYTES


@dataclass(frozen=True)
class Write:
    """subject: raw, as no client library would send some. head: the header block, empty for none."""

    subject: bytes
    data: bytes
    head: bytes = b""

    @property
    def message_id(self) -> str:
        """Return the message id that the log reads from the head."""
        return message_id(self.head)


class Scene(NamedTuple):
    """Two events of the run that a stranger has seen, and a source of chance."""

    event: Envelope
    other: Envelope
    chance: random.Random


def head(**headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def _as_event(scene: Scene, envelope: Envelope, data: bytes, subject: str | None = None) -> Write:
    """Return a write with a message id that the run could use and that the server has not seen."""
    message_id = f"{envelope.id}-{scene.chance.randbytes(4).hex()}"
    return Write((subject or envelope.subject).encode(), data, head(Nats_Msg_Id=message_id))


def _on(scene: Scene, data: bytes, **headers: str) -> Write:
    return Write(scene.event.subject.encode(), data, head(**headers) if headers else b"")


def _below(scene: Scene, tail: bytes, data: bytes = b"?") -> Write:
    noun, verb = scene.event.type.split(".")
    return Write(
        f"slime.{scene.event.run}.".encode() + tail.replace(b"NOUN", noun.encode()).replace(b"VERB", verb.encode()),
        data,
    )


def _changed(scene: Scene, **fields: Any) -> bytes:
    """The event's own record with other fields in its event; None takes one out."""
    plain = msgspec.msgpack.decode(encode(scene.event))
    plain["event"] = {name: value for name, value in (plain["event"] | fields).items() if value is not None}
    return msgspec.msgpack.encode(plain)


def _of_other_run(scene: Scene) -> Envelope:
    run = f"{scene.event.run}-2"
    return msgspec.structs.replace(scene.event, run=run, id=event_id(run, scene.event.event))


def _second_field(scene: Scene) -> str:
    """A field that an event of its type must have, and that is not its entity."""
    fields = msgspec.structs.fields(type(scene.event.event))
    return next((field.name for field in fields[1:] if field.required), fields[0].name)


def _newer(scene: Scene) -> bytes:
    plain = msgspec.msgpack.decode(encode(scene.event))
    return msgspec.msgpack.encode(plain | {"schema": 99})


KINDS: dict[str, tuple[Reason, Callable[[Scene], Write]]] = {
    "random bytes": (Reason.NO_EVENT, lambda s: _on(s, s.chance.randbytes(s.chance.randrange(1, 400)))),
    "nothing": (Reason.NO_EVENT, lambda s: _on(s, b"")),
    "as large as the stream takes": (Reason.NO_EVENT, lambda s: _on(s, bytes(MAX_EVENT_BYTES + HEADER_BYTES))),
    "JSON": (Reason.NO_EVENT, lambda s: _on(s, msgspec.json.encode({"run": s.event.run, "id": s.event.id}))),
    "an event that is cut off": (Reason.NO_EVENT, lambda s: _as_event(s, s.event, encode(s.event)[:-3])),
    "two events in one": (Reason.NO_EVENT, lambda s: _as_event(s, s.event, encode(s.event) + encode(s.other))),
    "an event without a field": (
        Reason.NO_EVENT, lambda s: _as_event(s, s.event, _changed(s, **{_second_field(s): None})),
    ),
    "an event with another type in a field": (
        Reason.NO_EVENT, lambda s: _as_event(s, s.event, _changed(s, **{_second_field(s): [[]]})),
    ),
    "an event of a type that nobody knows": (Reason.NO_EVENT, lambda s: _on(s, _changed(s, type="reward.stolen"))),
    "a newer schema without its id": (Reason.NO_EVENT, lambda s: _on(s, _newer(s))),
    "another run's event": (
        Reason.OTHER_RUN, lambda s: _as_event(s, e := _of_other_run(s), encode(e), s.event.subject),
    ),
    "an event on another entity's subject": (
        Reason.SUBJECT, lambda s: _as_event(s, s.event, encode(s.event), s.event.subject + "x"),
    ),
    "an event on a subject with one token more": (
        Reason.SUBJECT, lambda s: _as_event(s, s.event, encode(s.event), s.event.subject + ".more"),
    ),
    "an event with the id of another": (
        Reason.ID,
        lambda s: _as_event(s, e := msgspec.structs.replace(s.event, id=s.chance.randbytes(16).hex()), encode(e)),
    ),
    "a copy of an event": (Reason.MESSAGE_ID, lambda s: _on(s, encode(s.event))),
    "a copy that has its id": (Reason.MESSAGE_ID, lambda s: _as_event(s, s.event, encode(s.event))),
    "a copy with an id of its own": (
        Reason.MESSAGE_ID, lambda s: _on(s, encode(s.event), Nats_Msg_Id=s.chance.randbytes(8).hex()),
    ),
    "a subject with too few tokens": (Reason.NO_EVENT, lambda s: _below(s, b"NOUN.VERB")),
    "a subject that is not text": (Reason.NO_EVENT, lambda s: _below(s, b"NOUN.VERB.\xff\xfe\x01")),
    "a subject that is a filter": (Reason.NO_EVENT, lambda s: _below(s, b"NOUN.*.>")),
    "headers like a server's answer": (
        Reason.NO_EVENT,
        lambda s: _on(s, b"", Status="404", Nats_Sequence="1", Nats_Subject="slime", Nats_Num_Pending="0"),
    ),
    "no headers but a status": (
        Reason.NO_EVENT, lambda s: replace(_on(s, b""), head=b"NATS/1.0 503 No Responders\r\n\r\n"),
    ),
}  # fmt: skip
"""Why each is foreign, and how it is made. "the id of an event to come" is not here: see `claim`."""


def claim(subject: str, event: Envelope) -> Write:
    """A record that takes the message id of an event that the run has yet to append."""
    return Write(subject.encode(), b"mine", head(Nats_Msg_Id=event.id))


def make(kind: str, scene: Scene) -> Write:
    return KINDS[kind][1](scene)

"""Print the JSON Schema of the events, the envelope and the inbox: `python -m tools.json_schema`."""

import json
from typing import Any

import msgspec

from schemas.codec import StoredEnvelope
from schemas.inbox import InboxFates, InboxPrompt, InboxQuestion, InboxReply
from schemas.registry import EVENT_CLASSES
from tools.page_command import print_page

JSON_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class EnvelopeOnTheWire(StoredEnvelope, frozen=True, kw_only=True):
    """Envelope of an event; see `schemas.envelope.Envelope`. A MessagePack map with these keys."""

    event: Any


def json_schema() -> dict[str, Any]:
    """Return one document: `$defs` holds a schema per event type, `oneOf` is any event, `inbox` and `inbox_groups` are
    the messages of producers.

    Bytes are base64 strings here, as JSON has no bytes; on the wire they are MessagePack bytes.
    """
    others: tuple[type, ...] = (EnvelopeOnTheWire, InboxPrompt, InboxReply, InboxQuestion, InboxFates)
    schemas, parts = msgspec.json.schema_components((*EVENT_CLASSES, *others), ref_template="#/$defs/{name}")
    envelope, prompt, reply, question, fates = schemas[len(EVENT_CLASSES) :]
    document = {
        "$schema": JSON_DIALECT,
        "title": "slime-events",
        "oneOf": schemas[: len(EVENT_CLASSES)],
        "envelope": envelope,
        "inbox": {"request": {"anyOf": [prompt, {"type": "array", "items": prompt}]}, "reply": reply},
        "inbox_groups": {"request": question, "reply": fates},
        "$defs": dict(sorted(parts.items())),
    }
    return msgspec.json.decode(msgspec.json.encode(document), type=dict[str, Any])


if __name__ == "__main__":
    print_page(__doc__, lambda: json.dumps(json_schema(), indent=2) + "\n")

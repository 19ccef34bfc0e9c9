"""The AsyncAPI document of a run's inbox over NATS, generated from the structs of its messages."""

from typing import Annotated, Any, NamedTuple

import msgspec

from schemas.doc import doc
from schemas.inbox import PROMPTS, REWARDS, TRAJECTORIES, InboxFate, InboxFates, InboxPrompt, InboxQuestion, InboxReply
from schemas.outside import OutsideGroup, OutsideReward
from schemas.subjects import fates, inbox
from slime_events.core.config.per_source import NATS

GROUPS = "groups"


class _Door(NamedTuple):
    """Messages on one subject."""

    summary: str
    item: type[msgspec.Struct]
    reply: type[msgspec.Struct]
    example: dict[str, Any]
    many: Annotated[bool, doc("a message may be a list of items")] = True


_DOORS = {
    PROMPTS: _Door("Submit prompts", InboxPrompt, InboxReply, {"key": "quiz-1", "prompt": "8+2", "label": "10"}),
    TRAJECTORIES: _Door(
        "Submit finished groups",
        OutsideGroup,
        InboxReply,
        {"key": "chat-1", "prompt": "8+2", "samples": [{"text": "10", "reward": 1.0}]},
    ),
    REWARDS: _Door(
        "Submit rewards of samples that wait for them",
        OutsideReward,
        InboxReply,
        {"sample": "inbox-824e449912cbbf1d-s0", "reward": 1.0},
    ),
    GROUPS: _Door("Get the states of prompts", InboxQuestion, InboxFates, {"keys": ["quiz-1"]}, many=False),
}


def asyncapi(run: str) -> dict[str, Any]:
    """Return a run's document. Messages are NATS requests; a reply comes on the subject that its request names."""
    structs = list(
        dict.fromkeys(struct for door in _DOORS.values() for struct in (door.item, door.reply)) | {InboxFate: None}
    )
    schemas, parts = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(structs, schemas, strict=True))
    channels: dict[str, Any] = {"replies": {"address": None, "messages": {}}}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for name, door in _DOORS.items():
        item = schema_of[door.item]
        sent = {"oneOf": [item, {"type": "array", "items": item}]} if door.many else item
        messages[name] = _message(door.summary, sent) | {"examples": [{"payload": door.example}]}
        messages[f"{name}-reply"] = _message("Reply", schema_of[door.reply])
        channels[name] = {"address": inbox(run, name), "messages": {name: _ref("messages", name)}}
        channels["replies"]["messages"][f"{name}-reply"] = _ref("messages", f"{name}-reply")
        operations[name] = {
            "action": "send",
            "summary": door.summary,
            "channel": {"$ref": f"#/channels/{name}"},
            "reply": {
                "address": {"location": "$message.header#/reply"},
                "channel": {"$ref": "#/channels/replies"},
                "messages": [{"$ref": f"#/channels/replies/messages/{name}-reply"}],
            },
        }
    fate = schema_of[InboxFate]
    messages["fates"] = _message("State of a prompt that was submitted over NATS", fate)
    channels["fates"] = {"address": fates(run, NATS), "messages": {"fates": _ref("messages", "fates")}}
    operations["fates"] = {"action": "receive", "channel": {"$ref": "#/channels/fates"}}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "slime-events inbox", "version": "1"},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": parts},
    }


def _message(summary: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"summary": summary, "payload": schema}


def _ref(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}

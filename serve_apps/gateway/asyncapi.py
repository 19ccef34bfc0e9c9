"""The AsyncAPI document of a run's inbox over NATS, made of the structs that its messages are decoded by."""

from typing import Any, NamedTuple

import msgspec

from schemas.inbox import PROMPTS, REWARDS, TRAJECTORIES, InboxFates, InboxPrompt, InboxQuestion, InboxReply
from schemas.outside import OutsideGroup, OutsideReward
from schemas.subjects import inbox

GROUPS = "groups"


class _Door(NamedTuple):
    """What is sent on a subject, and an example of it. many: one, or a list of them."""

    summary: str
    item: type[msgspec.Struct]
    reply: type[msgspec.Struct]
    example: dict[str, Any]
    many: bool = True


_DOORS = {
    PROMPTS: _Door("Prompts in", InboxPrompt, InboxReply, {"key": "quiz-1", "prompt": "8+2", "label": "10"}),
    TRAJECTORIES: _Door(
        "Finished groups in",
        OutsideGroup,
        InboxReply,
        {"key": "chat-1", "prompt": "8+2", "samples": [{"text": "10", "reward": 1.0}]},
    ),
    REWARDS: _Door(
        "Rewards of samples that wait",
        OutsideReward,
        InboxReply,
        {"sample": "inbox-824e449912cbbf1d-s0", "reward": 1.0},
    ),
    GROUPS: _Door("What became of prompts", InboxQuestion, InboxFates, {"keys": ["quiz-1"]}, many=False),
}


def asyncapi(run: str) -> dict[str, Any]:
    """Of a run: each message is a NATS request, and its reply comes on the subject that the request names."""
    structs = list(dict.fromkeys(one for door in _DOORS.values() for one in (door.item, door.reply)))
    schemas, parts = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(structs, schemas, strict=True))
    channels: dict[str, Any] = {"replies": {"address": None, "messages": {}}}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for name, door in _DOORS.items():
        item = schema_of[door.item]
        sent = {"oneOf": [item, {"type": "array", "items": item}]} if door.many else item
        messages[name] = _message(door.summary, sent) | {"examples": [{"payload": door.example}]}
        messages[f"{name}-reply"] = _message("the reply", schema_of[door.reply])
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

"""Messages between outside producers and a run: JSON."""

import enum
import hashlib
from typing import Annotated, Any

import msgspec

from schemas.doc import doc

MAX_KEYS = 100
"""Most keys in one question."""
SENDER = "Slime-Sender"
"""Header of a gateway's message: the producer on whose behalf it sends."""
KIND = "Slime-Kind"
"""Header of a gateway's message: its kind, one of `KINDS`."""
KINDS = PROMPTS, TRAJECTORIES, REWARDS = "prompts", "trajectories", "rewards"
"""Kinds of messages: last token of the subject on which producers send them."""
OTHER_CONTENT = "other_content"
"""First word of a refusal of the field `key`: the run has this key with other content."""


class InboxPrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One prompt on `slime.<run>.inbox.prompts`."""

    key: Annotated[
        str,
        msgspec.Meta(min_length=1, max_length=200),
        doc("The sender's idempotency key. An equal key always means the same prompt."),
    ]
    prompt: Annotated[str | list[dict[str, Any]], doc("Text, or chat messages (role, content).")]
    label: Annotated[Any, doc("Label, as in a prompt file.")] = None
    metadata: Annotated[Any, doc("Metadata, as in a prompt file.")] = {}
    tools: Annotated[list[dict[str, Any]] | None, doc("Tool definitions, as in a prompt file.")] = None
    rendered: Annotated[
        bool,
        doc(
            "The model reads the text unchanged. If false and the run has a chat template, the text is a user message."
        ),
    ] = False
    priority: Annotated[
        int, msgspec.Meta(ge=-100, le=100), doc("Priority among the source's waiting prompts; the highest is first.")
    ] = 0

    def content(self) -> str:
        """Return the sha256 (hex) of all fields but the key, or an empty text if no log can hold them."""
        try:
            data = msgspec.json.encode(msgspec.structs.replace(self, key=""), order="sorted")
        except (OverflowError, RecursionError, ValueError):
            return ""
        return hashlib.sha256(data).hexdigest()


class FieldError(msgspec.Struct, frozen=True):
    """A problem of one field.

    An empty field means that the prompt is valid but the run cannot accept it now. If the key has other content, the
    message begins with OTHER_CONTENT.
    """

    index: Annotated[int, doc("Index of the prompt in the message.")]
    field: Annotated[str, doc("Name of the field; `message`: the whole message.")]
    message: Annotated[str, doc("Explanation, one sentence.")]


class InboxReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reply to a message of prompts, finished groups or rewards: all were accepted, or none."""

    accepted: Annotated[bool, doc("All items were accepted.")]
    groups: Annotated[tuple[str, ...], doc("Group ids in order; for rewards, sample ids.")] = ()
    errors: Annotated[tuple[FieldError, ...], doc("Every problem.")] = ()
    full: Annotated[bool, doc("The message was refused because too many prompts are waiting.")] = False


class InboxQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A producer's query for the fates of its prompts, on `slime.<run>.inbox.groups`."""

    keys: Annotated[
        tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_KEYS), doc("Idempotency keys of the prompts.")
    ]


class Fate(enum.StrEnum):
    """State of a producer's prompt.

    UNKNOWN: the run has no prompt with the key. WAITING: it is not decided. ACCEPTED: a batch has it or will have it,
    and it is not trained yet.
    """

    UNKNOWN = "unknown"
    WAITING = "waiting"
    REJECTED = "rejected"
    ACCEPTED = "accepted"
    TRAINED = "trained"


class SampleFate(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of one sample of a group."""

    sample: Annotated[str, doc("Id of the sample.")]
    tokens: Annotated[int, doc("Tokens generated until now.")]
    versions: Annotated[tuple[int, ...], doc("Weight versions that generated them.")] = ()
    done: Annotated[bool, doc("The rollout is complete.")] = False
    reward: Annotated[float | None, doc("Reward as graded; None before grading.")] = None


class InboxFate(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of one group."""

    key: Annotated[str, doc("The sender's idempotency key.")]
    group: Annotated[str, doc("Id of the group.")]
    fate: Annotated[Fate, doc("State of the prompt.")]
    rewards: Annotated[tuple[float, ...], doc("Rewards as graded, by sample.")] = ()
    reason: Annotated[str, doc("Why the group was rejected.")] = ""
    step: Annotated[int | None, doc("Step whose batch has the group.")] = None
    version: Annotated[int | None, doc("Weight version that training on the group made.")] = None
    samples: Annotated[tuple[SampleFate, ...], doc("States of the samples; only a gateway reports them.")] = ()


class InboxFates(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reply to an `InboxQuestion`."""

    groups: Annotated[tuple[InboxFate, ...], doc("One state per key, in order.")] = ()
    errors: Annotated[tuple[FieldError, ...], doc("Problems of the query.")] = ()

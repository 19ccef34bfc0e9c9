"""Messages between outside producers and a run: JSON."""

from typing import Annotated, Any

import msgspec


class InboxPrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One prompt on `slime.<run>.inbox.prompts`.

    key: the sender's idempotency key; the same key is the same prompt for ever. prompt: text, or chat messages
    (role, content). label, metadata, tools: as in a prompt file. rendered: the prompt is a text as the model is to read
    it; without it a text is a user's message in a run with a chat template.
    """

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    prompt: str | list[dict[str, Any]]
    label: str | None = None
    metadata: dict[str, Any] = {}
    tools: list[dict[str, Any]] | None = None
    rendered: bool = False


class FieldError(msgspec.Struct, frozen=True):
    """What is wrong, where: index of the prompt in the message, field, one sentence."""

    index: int
    field: str
    message: str


class InboxReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a message of one prompt or a list of them: group ids in order, or every error. All or nothing."""

    accepted: bool
    groups: tuple[str, ...] = ()
    errors: tuple[FieldError, ...] = ()

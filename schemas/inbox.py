"""Messages between outside producers and a run: JSON."""

import enum
import hashlib
from typing import Annotated, Any

import msgspec

MAX_KEYS = 100
"""Keys in one question."""
SENDER = "Slime-Sender"
"""Header of a gateway's message: in whose name it brings the prompts."""
KIND = "Slime-Kind"
"""Header of a gateway's message: what it holds, by the last word of the subject on which producers send it."""
KINDS = PROMPTS, TRAJECTORIES, REWARDS = "prompts", "trajectories", "rewards"
"""What producers send, each on a subject of its own."""
OTHER_CONTENT = "other_content"
"""First word of a refusal, of the field `key`: the run has something else under this key."""


class InboxPrompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One prompt on `slime.<run>.inbox.prompts`.

    key: the sender's idempotency key; the same key is the same prompt for ever. prompt: text, or chat messages
    (role, content). label, metadata, tools: as in a prompt file. rendered: the prompt is a text as the model is to read
    it; without it a text is a user's message in a run with a chat template. priority: of a source's waiting prompts the
    higher is first.
    """

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    prompt: str | list[dict[str, Any]]
    label: Any = None
    metadata: Any = {}
    tools: list[dict[str, Any]] | None = None
    rendered: bool = False
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0

    def content(self) -> str:
        """sha256 (hex) of everything but the key, equal however its JSON was written; empty for what no log holds."""
        try:
            data = msgspec.json.encode(msgspec.structs.replace(self, key=""), order="sorted")
        except (OverflowError, RecursionError, ValueError):
            return ""
        return hashlib.sha256(data).hexdigest()


class FieldError(msgspec.Struct, frozen=True):
    """What is wrong, where: index of the prompt in the message, field (`message`: all of it), one sentence.

    No field: nothing is wrong, and the run cannot take it just now. Where a key stands for something else, the
    sentence begins with OTHER_CONTENT.
    """

    index: int
    field: str
    message: str


class InboxReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a message of one prompt or a list of them: group ids in order, or every error. All or nothing.
    Likewise of finished groups; of rewards with sample ids.

    full: it was not taken since too many prompts wait already.
    """

    accepted: bool
    groups: tuple[str, ...] = ()
    errors: tuple[FieldError, ...] = ()
    full: bool = False


class InboxQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of one's prompts, on `slime.<run>.inbox.groups`. keys: as they were sent."""

    keys: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_KEYS)]


class Fate(enum.StrEnum):
    """UNKNOWN: the run has no prompt of that key. WAITING: it is not decided on. ACCEPTED: a batch will have it, or has
    it and is not trained on yet.
    """

    UNKNOWN = "unknown"
    WAITING = "waiting"
    REJECTED = "rejected"
    ACCEPTED = "accepted"
    TRAINED = "trained"


class SampleFate(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sample of a group. tokens: generated until now, by weights of these versions. done: all of them are.
    reward: as graded; None while it is not.
    """

    sample: str
    tokens: int
    versions: tuple[int, ...] = ()
    done: bool = False
    reward: float | None = None


class InboxFate(msgspec.Struct, frozen=True, omit_defaults=True):
    """One group. rewards: as graded. reason: why it was rejected. step: whose batch has it. version: the weights that
    training on it made. samples: told by a gateway.
    """

    key: str
    group: str
    fate: Fate
    rewards: tuple[float, ...] = ()
    reason: str = ""
    step: int | None = None
    version: int | None = None
    samples: tuple[SampleFate, ...] = ()


class InboxFates(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a question: a fate for each key in order, or what is wrong with it."""

    groups: tuple[InboxFate, ...] = ()
    errors: tuple[FieldError, ...] = ()

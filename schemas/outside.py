"""Finished rollouts from outside, and rewards for rollouts: JSON, as producers send them."""

from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.inbox import InboxPrompt

Count = Annotated[int, msgspec.Meta(ge=0)]


class OutsideSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One answer to a prompt: exactly one of `tokens`, `text` and `messages`."""

    tokens: Annotated[list[Count] | None, doc("Token ids after the prompt's.")] = None
    text: Annotated[str | None, doc("Text of the answer.")] = None
    messages: Annotated[list[dict[str, Any]] | None, doc("Chat messages after the prompt's.")] = None
    loss_mask: Annotated[
        list[Annotated[int, msgspec.Meta(ge=0, le=1)]] | None,
        doc(
            "[tokens]: 1 for each token that is trained on. By default all of `tokens` and `text`, and the assistants' "
            "part of `messages`."
        ),
    ] = None
    log_probs: Annotated[
        list[float] | None,
        doc(
            "[tokens]: log-probs (nats) of logits / temperature by weights `version` of this run. By default the "
            "trainer uses its own."
        ),
    ] = None
    version: Annotated[Count | None, doc("Weight version that made the answer; by default the newest.")] = None
    reward: Annotated[float | None, doc("Reward; by default the run grades.")] = None
    truncated: Annotated[bool, doc("The answer was cut by a length limit.")] = False
    metadata: Annotated[dict[str, Any], doc("Metadata in addition to the prompt's.")] = {}


class OutsideGroup(InboxPrompt, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One prompt with its answers, on `slime.<run>.inbox.trajectories`."""

    samples: Annotated[list[OutsideSample], msgspec.Meta(min_length=1), doc("Answers to the prompt.")]


class OutsideReward(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Reward for a finished sample that waits for it, on `slime.<run>.inbox.rewards`."""

    sample: Annotated[str, msgspec.Meta(min_length=1, max_length=200), doc("Id of the sample.")]
    reward: Annotated[float, doc("Reward that is trained on.")]
    detail: Annotated[dict[str, Any] | None, doc("Additional data, stored with the reward.")] = None

    @property
    def key(self) -> str:
        """Idempotency key: the sample, because a sample has one reward."""
        return self.sample

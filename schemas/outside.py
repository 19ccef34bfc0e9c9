"""Finished rollouts from outside, and rewards for rollouts: JSON, as a producer sends it."""

from typing import Annotated, Any

import msgspec

from schemas.inbox import InboxPrompt

Count = Annotated[int, msgspec.Meta(ge=0)]


class OutsideSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One answer, as `tokens` (ids after the prompt's), `text`, or `messages` (after the prompt's chat).

    loss_mask: 1 for each token that is trained on, else 0; without it all `tokens` and `text` are, and of `messages`
    those of assistants. log_probs: of `tokens`, natural, of logits / temperature, by weights `version` of this run;
    without them the trainer takes its own. version: without it the newest weights count as those that made it.
    reward: without it the run grades. metadata: beside the prompt's.
    """

    tokens: list[Count] | None = None
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    loss_mask: list[Annotated[int, msgspec.Meta(ge=0, le=1)]] | None = None
    log_probs: list[float] | None = None
    version: Count | None = None
    reward: float | None = None
    truncated: bool = False
    metadata: dict[str, Any] = {}


class OutsideGroup(InboxPrompt, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """On `slime.<run>.inbox.trajectories`: a prompt (see `InboxPrompt`), and its answers: a group of the run."""

    samples: Annotated[list[OutsideSample], msgspec.Meta(min_length=1)]


class OutsideReward(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """On `slime.<run>.inbox.rewards`: the reward of a finished sample that waits for it. detail: what else is known."""

    sample: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    reward: float
    detail: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        """It names itself: a sample has one reward."""
        return self.sample

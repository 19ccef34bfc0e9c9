"""`Sample`: what a user's function sees of one rollout (slime's type, field by field).

This is the face of the plug points only. Inside, a rollout is its events; a `Sample` is made from them for a
user's filter or reward and what the function decided goes back into an event.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


class Status(enum.StrEnum):
    """Where a sample stands. Engine finish reasons map stop -> completed, length -> truncated, abort -> aborted."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """One response to one prompt.

    `tokens` is prompt + response (ids); `loss_mask` (0/1) and `rollout_log_probs` (nats, of logits / temperature)
    are aligned with the response, the last `response_length` of them.
    """

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, Any]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    prefix_cache_info: dict[str, int] = field(default_factory=dict)

    Status = Status

    def get_reward_value(self, args: Any) -> Any:
        """The reward, or its `args.reward_key` entry where the grader gave a dict."""
        key = getattr(args, "reward_key", None)
        if isinstance(self.reward, dict) and key:
            return self.reward[key]
        return self.reward

    @property
    def effective_response_length(self) -> int:
        """Trainable tokens of the response."""
        return sum(self.loss_mask) if self.loss_mask is not None else self.response_length

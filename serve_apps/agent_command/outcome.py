"""What a program's end says of its session: its exit code, and the reward that the last line of its output gives."""

import json
from dataclasses import dataclass, field
from typing import Any

from schemas.redaction import shown
from schemas.rewards import is_reward

TIMED_OUT = 124
"""Exit code of a program that took too long, as `timeout` has it."""
NO_REWARD = 65
"""Of one that ended well with a reward that is none, as sysexits.h has it for wrong data."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """reward: None: the run's grader gives it. rewards: by the turn that ended a path. metadata: JSON."""

    exit_code: int
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """Of the request that seals the session."""
        return {
            "exit_code": self.exit_code,
            "reward": self.reward,
            "rewards": self.rewards,
            "metadata": self.metadata,
        }


def outcome_of(exit_code: int, last_line: str) -> Outcome:
    """last_line: of the standard output. It counts if it is a JSON object with `reward`, `rewards` or `metadata`."""
    try:
        said = json.loads(last_line)
    except ValueError:
        said = None
    if not isinstance(said, dict) or not said.keys() & {"reward", "rewards", "metadata"}:
        return Outcome(exit_code)
    reward, rewards, metadata = said.get("reward"), said.get("rewards") or {}, said.get("metadata") or {}
    fine = (reward is None or _is_reward(reward)) and isinstance(rewards, dict) and isinstance(metadata, dict)
    if not (fine and all(_is_reward(one) for one in rewards.values())):
        why = shown(f"the last line of the output gives no reward: {last_line[:200]}")
        return Outcome(exit_code or NO_REWARD, metadata={"error": why})
    return Outcome(exit_code, reward, rewards, metadata)


def _is_reward(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and is_reward(value)

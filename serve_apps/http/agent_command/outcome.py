"""Reads a session's outcome from its program: the exit code, and the reward in the last line of its output."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

from schemas.doc import doc
from schemas.redaction import shown
from schemas.rewards import is_reward

TIMED_OUT = 124
"""Exit code of a program that took too long, as with `timeout`."""
NO_REWARD = 65
"""Exit code of a program that succeeded with an invalid reward: EX_DATAERR of sysexits.h."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a program."""

    exit_code: int
    reward: Annotated[float | None, doc("reward of each path that has none in `rewards`; None: the grader's")] = None
    rewards: Annotated[dict[str, float], doc("rewards of single paths, by the index of their last turn")] = field(
        default_factory=dict
    )
    metadata: Annotated[dict[str, Any], doc("JSON values for the metadata of the samples")] = field(
        default_factory=dict
    )

    @property
    def body(self) -> dict[str, Any]:
        """Body of the request that seals the session."""
        return {
            "exit_code": self.exit_code,
            "reward": self.reward,
            "rewards": self.rewards,
            "metadata": self.metadata,
        }


def outcome_of(exit_code: int, last_line: str) -> Outcome:
    """Return the outcome of a program.

    last_line: of the standard output. It is ignored unless it is a JSON object with `reward`, `rewards` or `metadata`.
    """
    try:
        result = json.loads(last_line)
    except ValueError:
        result = None
    if not isinstance(result, dict) or not result.keys() & {"reward", "rewards", "metadata"}:
        return Outcome(exit_code)
    reward, rewards, metadata = result.get("reward"), result.get("rewards") or {}, result.get("metadata") or {}
    is_valid = (reward is None or _is_reward(reward)) and isinstance(rewards, dict) and isinstance(metadata, dict)
    if not (is_valid and all(_is_reward(value) for value in rewards.values())):
        why = shown(f"the last line of the output has no valid reward: {last_line[:200]}")
        return Outcome(exit_code or NO_REWARD, metadata={"error": why})
    return Outcome(exit_code, reward, rewards, metadata)


def _is_reward(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and is_reward(value)

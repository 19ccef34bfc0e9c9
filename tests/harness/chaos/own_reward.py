"""`exact` as a user's own function, which the grader's pool calls in a process that can be struck."""

from __future__ import annotations

from typing import Any

from slime_events.plugins.rewards import exact
from slime_events.plugins.sample import Sample


def reward_func(args: Any, sample: Sample) -> float:
    """Return the reward of `--rm-type exact`."""
    return exact.reward(sample.response, sample)

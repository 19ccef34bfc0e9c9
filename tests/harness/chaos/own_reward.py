"""`exact` as a user's own: what the grader's pool calls, so that there is a process of it to strike."""

from __future__ import annotations

from typing import Any

from slime_events.plugins.rewards import exact
from slime_events.plugins.sample import Sample


def reward_func(args: Any, sample: Sample) -> float:
    """As `--rm-type exact`."""
    return exact.reward(sample.response, sample)

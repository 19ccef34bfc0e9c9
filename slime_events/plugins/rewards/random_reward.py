"""`random`: 0 or 1 whatever the answer, for baselines and plumbing.

Seeded by the sample, so that a replay grades alike (slime's is not seeded).
"""

from __future__ import annotations

import hashlib

from slime_events.plugins.sample import Sample


def reward(response: str, sample: Sample) -> int:
    """0 or 1, the same for the same sample and response."""
    about = f"{sample.group_index}/{sample.index}/{sample.rollout_id}/{response}"
    return hashlib.sha256(about.encode()).digest()[0] & 1

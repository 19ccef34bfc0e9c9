"""`random`: reward 0 or 1 regardless of the answer, for baselines and tests of the pipeline.

The sample is the seed, so that a replay gives the same reward (slime's is not seeded).
"""

from __future__ import annotations

import hashlib

from slime_events.plugins.sample import Sample


def reward(response: str, sample: Sample) -> int:
    """Return 0 or 1, always the same for a sample and response."""
    about = f"{sample.group_index}/{sample.index}/{sample.rollout_id}/{response}"
    return hashlib.sha256(about.encode()).digest()[0] & 1

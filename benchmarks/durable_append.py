"""Measure durable appends of rollouts of 4,096 tokens with `benchmarks.append`, against a target.

256 callers append through group commit to a server with `sync_interval: always`. For comparison, nats-py alone sends
batches of 100 that were encoded before.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks import append
from benchmarks.figure import Figure


def measure(rollouts: int = 3000, rewards: int = 30_000) -> list[Figure]:
    """Return rollouts per second through group commit, each on disk before it counts."""
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(append.measure(Path(folder), rollouts=rollouts, rewards=rewards))
    note = (
        f"100 a call {figures.rollouts_in_batches_per_s:,.0f}/s, the same by nats-py alone "
        f"{figures.bare_rollouts_per_s:,.0f}/s, small events {figures.rewards_per_s:,.0f}/s, "
        f"one alone {figures.append_ms:.1f} ms, to a follower {figures.follow_ms:.1f} ms"
    )
    return [
        Figure(name="durable append, 4k tokens", value=figures.rollouts_per_s, unit="/s", target=5000.0, note=note),
        Figure(
            name="durable append / what the server takes",
            value=figures.rollouts_per_s / figures.bare_rollouts_per_s,
            unit="x",
            target=1.0,
            note="256 callers through group commit, against batches of 100 by nats-py alone, encoded before",
        ),
    ]

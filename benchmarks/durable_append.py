"""Durable appends of rollouts of 4,096 tokens: what `benchmarks.append` measures, against its target."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks import append
from benchmarks.figure import Figure


def measure(rollouts: int = 3000, rewards: int = 30_000) -> list[Figure]:
    """Rollouts a second through group commit, each on disk before it counts; the rest in the note."""
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(append.measure(Path(folder), rollouts=rollouts, rewards=rewards))
    note = (
        f"100 a call {found.rollouts_in_batches_per_s:,.0f}/s, the same by nats-py alone "
        f"{found.bare_rollouts_per_s:,.0f}/s, small events {found.rewards_per_s:,.0f}/s, "
        f"one alone {found.append_ms:.1f} ms, to a follower {found.follow_ms:.1f} ms"
    )
    return [
        Figure(name="durable append, 4k tokens", value=found.rollouts_per_s, unit="/s", target=5000.0, note=note),
        Figure(
            name="durable append / what the server takes",
            value=found.rollouts_per_s / found.bare_rollouts_per_s,
            unit="x",
            target=1.0,
            note="256 callers through group commit, against batches of 100 by nats-py alone, encoded before",
        ),
    ]

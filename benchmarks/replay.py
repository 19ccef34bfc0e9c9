"""How fast a finished run's log is folded: the demo's, from JetStream's position 0 on, proved to be complete."""

from __future__ import annotations

from benchmarks.demo_run import STEPS, demo_run
from benchmarks.figure import Figure


def measure(steps: int = STEPS) -> list[Figure]:
    """Events a second, reading and decoding included."""
    run = demo_run(0, steps)
    return [Figure(name="replay of the log", value=run.replay, unit="events/s", note=f"{run.summary['events']} events")]

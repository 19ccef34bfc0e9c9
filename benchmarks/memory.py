"""Measure the memory of all processes of a demo run, including those of Ray and the NATS server.

It is the sum of PSS, in which a shared page counts once: the maximum of measurements every five seconds.
"""

from __future__ import annotations

from benchmarks.demo_run import STEPS, demo_run
from benchmarks.figure import Better, Figure


def measure(steps: int = STEPS) -> list[Figure]:
    """Return the peak of the sum of PSS, in which a page that processes share counts once."""
    return [
        Figure(
            name="demo, memory of all processes",
            value=demo_run(0, steps).memory / 1e9,
            unit="GB",
            target=10.0,
            better=Better.LOWER,
            note="sum of PSS",
        )
    ]

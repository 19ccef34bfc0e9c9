"""Resident memory of the demo: all processes of its run together, Ray's and the NATS server's included."""

from __future__ import annotations

from benchmarks.demo_run import STEPS, demo_run
from benchmarks.figure import Better, Figure


def measure(steps: int = STEPS) -> list[Figure]:
    """The most that was seen at one moment, as PSS: a page that processes share counts once."""
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

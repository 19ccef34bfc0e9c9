"""Measure the time from the command to the first weights on an engine, and its parts.

They are `seconds_startup` and `startup` of `summary.json`.
"""

from __future__ import annotations

from benchmarks.demo_run import STEPS, demo_run
from benchmarks.figure import Better, Figure


def measure(steps: int = STEPS) -> list[Figure]:
    """Return `seconds_startup` of the run's summary. Its parts run in parallel, so they do not add up."""
    summary = demo_run(0, steps).summary
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in summary["startup"].items())
    return [
        Figure(
            name="demo, start-up",
            value=summary["seconds_startup"],
            unit="s",
            target=40.0,
            better=Better.LOWER,
            note=f"in parallel, s: {parts}",
        )
    ]

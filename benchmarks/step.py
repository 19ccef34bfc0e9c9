"""Measure the seconds of a step of the demo, at staleness 0 and 1.

The figure is the median of 25 steps, from one `step.committed` to the next.
"""

from __future__ import annotations

from benchmarks.control_plane import wall_note
from benchmarks.demo_run import STEPS, demo_run
from benchmarks.figure import Better, Figure


def measure(steps: int = STEPS) -> list[Figure]:
    """Return medians over all steps except the first."""
    runs = {staleness: demo_run(staleness, steps) for staleness in (0, 1)}
    return [
        Figure(
            name=f"demo step, staleness {staleness}",
            value=run.seconds_per_step,
            unit="s",
            better=Better.LOWER,
            note=wall_note(run),
        )
        for staleness, run in runs.items()
    ]

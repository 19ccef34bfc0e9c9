"""Measure the log and the control plane in a run of the demo: their share of a step's wall time, and their CPU.

`benchmarks.critical_path` defines the share. The CPU is that of conductor, grader, archivist and NATS server, as a
share of one core.
"""

from __future__ import annotations

import statistics

from benchmarks.critical_path import Work
from benchmarks.demo_run import STEPS, DemoRun, demo_run
from benchmarks.figure import Better, Figure

CONTROL_ROLES = ("conductor", "grader", "archivist", "nats")
TARGET = 0.03


def measure(steps: int = STEPS) -> list[Figure]:
    """Return, at staleness 0, the share of the wall time by `critical_path`, and the cores that processes use."""
    run = demo_run(0, steps)
    return [
        Figure(
            name="control plane / step, wall",
            value=statistics.median(step.control / step.wall for step in run.steps),
            unit="share",
            target=TARGET,
            better=Better.LOWER,
            note=wall_note(run),
        ),
        Figure(
            name="control plane / step, CPU",
            value=sum(run.cpu.get(role, 0.0) for role in CONTROL_ROLES) / run.seconds_per_step,
            unit="cores",
            better=Better.LOWER,
            note="CPU ms a step: " + ", ".join(f"{role} {1e3 * seconds:.0f}" for role, seconds in run.cpu.items()),
        ),
    ]


def wall_note(run: DemoRun) -> str:
    """Return the medians of a step's parts as text."""
    parts = {kind.value: statistics.median(step.work[kind] for step in run.steps) for kind in Work}
    parts["control"] = statistics.median(step.control for step in run.steps)
    return "ms a step: " + ", ".join(f"{name} {1e3 * seconds:.0f}" for name, seconds in parts.items())

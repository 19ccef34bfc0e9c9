"""Compare a step of the demo with a step of TRL's GRPOTrainer on the same questions, batch and settings.

TRL runs in one process and stores nothing (`trl_baseline.py`). Our step is complete: durable events, a weight version
per step, all processes on the same cores. The SmolLM2 comparison takes many minutes and runs only with `--long`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.demo_run import STEPS, demo_run, smollm2_run
from benchmarks.figure import Better, Figure

DEADLINE_S = 1800.0
MISSING = "TRL is not installed: make install-benchmarks"


def measure(steps: int = STEPS, *, long: bool = False) -> list[Figure]:
    """Return our time over TRL's at staleness 0 and 1; with `long`, also TRL's over ours on SmolLM2-135M."""
    theirs = baseline("demo", steps)
    figures = [_demo(theirs, staleness, steps) for staleness in (0, 1)]
    return [*figures, _smollm2()] if long else figures


def _demo(theirs: dict[str, Any] | None, staleness: int, steps: int) -> Figure:
    name, better = f"demo step / TRL step, staleness {staleness}", Better.LOWER
    target = 1.0 if staleness else None  # the target applies to overlapping work
    if theirs is None:
        return Figure(name=name, value=None, unit="x", target=target, better=better, note=MISSING)
    run, seconds = demo_run(staleness, steps), theirs["seconds_per_step"]
    note = f"{run.seconds_per_step:.3f} s against {seconds:.3f} s of TRL {theirs['trl']}, {steps} steps"
    return Figure(name=name, value=run.seconds_per_step / seconds, unit="x", target=target, better=better, note=note)


def _smollm2() -> Figure:
    name, target = "TRL step / SmolLM2-135M step", 1.5
    steps = 6
    theirs = baseline("smollm2-135m", steps)
    if theirs is None:
        return Figure(name=name, value=None, unit="x", target=target, note=MISSING)
    ours, seconds = smollm2_run(steps).seconds_per_step, theirs["seconds_per_step"]
    note = f"{seconds:.1f} s of TRL {theirs['trl']} against {ours:.1f} s, {steps} steps"
    return Figure(name=name, value=seconds / ours, unit="x", target=target, note=note)


def baseline(model: str, steps: int) -> dict[str, Any] | None:
    """Run `benchmarks.trl_baseline` and return its output; None if TRL is not installed."""
    if importlib.util.find_spec("trl") is None:
        return None
    command = [sys.executable, "-m", "benchmarks.trl_baseline", "--model", model, "--steps", str(steps)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, timeout=DEADLINE_S, env=environment
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result

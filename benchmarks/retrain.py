"""Measure how much faster `retrain` trains the steps of a run from its archive than the run did, with equal digests.

Both are measured from start to end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from benchmarks.demo_run import STEPS, demo_run
from benchmarks.figure import Figure

DEADLINE_S = 600.0


def measure(steps: int = STEPS) -> list[Figure]:
    """Return the seconds of the run over those of the command, both from start to end."""
    run = demo_run(0, steps)
    command = [sys.executable, "-m", "slime_events.app.cli.main", "retrain", str(run.archive), "--json"]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False, env=os.environ, text=True)
    seconds = time.perf_counter() - begun
    name, unit, target = "run / its steps trained again", "x", 3.0
    if done.returncode:
        return [Figure(name=name, value=None, unit=unit, target=target, note=(done.stderr or done.stdout)[-200:])]
    report = json.loads(done.stdout)
    of_run, training = run.summary["seconds_total"], sum(step["seconds"] for step in report["steps"])
    stepping = f"{training:.1f} s of it training, against {of_run:.1f} s, {report['run_seconds']:.1f} s of it in steps"
    note = f"{len(report['steps'])} steps, every digest equal: {seconds:.1f} s, {stepping}"
    return [Figure(name=name, value=of_run / seconds, unit=unit, target=target, note=note)]

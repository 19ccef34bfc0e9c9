"""Measure `show` of a sample, group, step or version on a long live log, from process start to end.

The log of 10^6 events is in a run's folder on a NATS server. The figure is the slowest of five processes.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figure import Better, Figure
from benchmarks.kept_log import RUN, fill_log
from benchmarks.long_log import GROUPS, PER_STEP
from slime_events.core.run.run_folder import RunFolder
from storage.jetstream.log import JetStreamLog
from storage.nats.server import NatsServer

EVENTS = 1_000_000
QUESTIONS = 5
AT_MOST_S = 0.5


def measure(events: int = EVENTS) -> list[Figure]:
    """Return the slowest seconds of questions across the run, from the start of the process to its end."""
    return asyncio.run(_measure(max(QUESTIONS, events // PER_STEP)))


async def _measure(steps: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder.create(temporary, RUN)
        folder.settings.write_text(f'[run]\nrun = "{RUN}"\n')
        async with await NatsServer.start(folder.nats) as server:
            log = await JetStreamLog.open(server.url, RUN)
            await fill_log(log, steps)
            await log.close()
            await asyncio.to_thread(_took, folder.path, "--help")  # compiles the modules of the later processes
            await asyncio.to_thread(_took, folder.path, "--version", "0")
            took = {
                what: max([await asyncio.to_thread(_took, folder.path, f"--{what}", *name) for name in names])
                for what, names in _questions(steps).items()
            }
    started = "{:.2f} s, {:.2f} s of CPU".format(*took.pop("help"))
    note = f"{steps * PER_STEP} events; the slowest of {QUESTIONS} processes; one with --help takes {started}"
    return [
        Figure(
            name=f"show --{what}, live log",
            value=value,
            unit="s",
            target=AT_MOST_S if what == "sample" else None,
            better=Better.LOWER,
            note=f"{note}, this one {cpu:.2f}",
        )
        for what, (value, cpu) in took.items()
    ]


def _questions(steps: int) -> dict[str, list[tuple[str, ...]]]:
    chosen = [number * (steps - 1) // (QUESTIONS - 1) for number in range(QUESTIONS)]
    groups = [f"train-0-{step * GROUPS:07d}" for step in chosen]
    return {
        "help": [()],
        "sample": [(f"{group}-s3",) for group in groups],
        "group": [(group,) for group in groups],
        "step": [(str(step),) for step in chosen],
        "version": [(str(step + 1),) for step in chosen],
    }


def _took(run: Path, *words: str) -> tuple[float, float]:
    """Return the seconds of a process by the clock, and by CPU, which other processes on the machine do not affect.

    Modules are compiled once, as in an installed package, even if PYTHONDONTWRITEBYTECODE is set.
    """
    compiled = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(run.parent / "compiled")}
    command = [sys.executable, "-m", "slime_events.app.cli.main", "show", str(run), *words]
    begun, cpu = time.perf_counter(), _cpu()
    shown = subprocess.run(command, capture_output=True, text=True, env=compiled, check=False)
    seconds, cpu = time.perf_counter() - begun, _cpu() - cpu
    if shown.returncode or words[-1] not in shown.stdout:
        raise AssertionError(f"{' '.join(command)} gave {shown.returncode}: {shown.stderr or shown.stdout}")
    return seconds, cpu


def _cpu() -> float:
    """Return the CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

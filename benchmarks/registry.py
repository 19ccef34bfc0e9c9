"""All benchmarks by name: a module each, with one function `measure`, imported when it is asked for."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Sequence
from typing import cast

from benchmarks.figure import Figure, Row, load

NAMES = (
    "durable_append",
    "leases",
    "prompts",
    "ingest",
    "flood",
    "trainer",
    "tree_packing",
    "engine",
    "agent_prompts",
    "agent_session",
    "agent_latency",
    "chunk_cost",
    "span",
    "trainer_idle",
    "length_bias",
    "step",
    "control_plane",
    "memory",
    "startup",
    "recovery",
    "effective_time",
    "replay",
    "fold",
    "retrain",
    "algorithms",
    "resume",
    "leader_loss",
    "lineage",
    "look_up",
    "long_run",
    "query",
    "rescore",
    "trl",
)
"""In the order in which they run. From `step` on they share the runs of the demo that the first of them makes."""

LONG = ("recovery", "effective_time", "algorithms")
"""Runs that are killed again and again, or a run for each algorithm: many minutes each, with `--long` or named."""
MORE = "trl"
"""Has more to measure with `--long`."""


def chosen(only: Sequence[str] | None, *, long: bool) -> Sequence[str]:
    """The names to measure, in order. only: those named, else all that `long` allows."""
    return only or [name for name in NAMES if long or name not in LONG]


def measure(name: str, *, long: bool = False) -> list[Row]:
    """Run one benchmark."""
    module = importlib.import_module(f"benchmarks.{name}")
    call = cast(Callable[..., list[Figure]], module.measure)
    before, begun = load(), time.perf_counter()
    figures = call(long=True) if long and name == MORE else call()
    seconds, after = time.perf_counter() - begun, load()
    cores = len(os.sched_getaffinity(0))
    return [
        Row(benchmark=name, figure=figure, load=(before, after), cores=cores, seconds=seconds) for figure in figures
    ]

"""All benchmarks by name. Each is a module with a function `measure`, imported when it is used."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Sequence
from typing import cast

from benchmarks.figure import Figure, Row, load

NAMES = (
    "durable_append",
    "cluster_append",
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
    "decide",
    "retrain",
    "algorithms",
    "resume",
    "leader_loss",
    "lineage",
    "look_up",
    "convert",
    "load_share",
    "experts",
    "delta",
    "carriers",
    "broadcast",
    "pipeline",
    "long_run",
    "query",
    "console",
    "live_view",
    "rescore",
    "trl",
)
"""Benchmarks in the order in which they run. From `step` on they share runs of the demo."""

LONG = ("recovery", "effective_time", "algorithms")
"""Benchmarks that take many minutes, for `--long` or `--only`: runs with many kills, or a run for each algorithm."""
MORE = "trl"
"""Benchmark that measures more with `--long`."""


def chosen(only: Sequence[str] | None, *, long: bool) -> Sequence[str]:
    """Return the names to measure in order. only: names from the command line; None for all that `long` allows."""
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

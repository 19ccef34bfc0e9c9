"""Measure the cost of a trace span for the code that records it. Another thread exports spans to a file."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.figure import Better, Figure
from slime_events.core.telemetry.span import Span, trace_id
from slime_events.core.telemetry.telemetry import Telemetry

FLUSH_S = 60.0


def measure(spans: int = 20_000) -> list[Figure]:
    """Return the median microseconds per span. Pauses of the machine affect only a few spans."""
    with tempfile.TemporaryDirectory() as folder:
        telemetry = Telemetry.start("benchmark", "run", None, Path(folder) / "spans.jsonl", 1.0)
        trace = trace_id("run", "prompt")
        times = []
        for number in range(spans):
            begun = time.perf_counter()
            telemetry.record(
                Span(
                    name="generate",
                    trace=trace,
                    span=number + 1,
                    parent=1,
                    start_ns=number,
                    end_ns=number + 1,
                    attributes={"sample": "g-s0", "tokens": 64},
                )
            )
            times.append(time.perf_counter() - begun)
        telemetry.shutdown(FLUSH_S)
    note = f"{spans:,} spans, {telemetry.dropped:,} dropped at this pace"
    value = statistics.median(times) * 1e6
    return [Figure(name="span, for its caller", value=value, unit="us", target=100.0, better=Better.LOWER, note=note)]
